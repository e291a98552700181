#include "lockstep/runtime/device.h"

#include <charconv>
#include <ostream>

#include "lockstep/runtime/check.h"

namespace lockstep {

Device::Device(std::string_view text) {
  if (text == "cpu") return;
  if (text == "meta") {
    type = DeviceType::meta;
    return;
  }
  type = DeviceType::cuda;
  bool valid = text == "cuda";
  if (text.starts_with("cuda:")) {
    auto [end, error] = std::from_chars(text.data() + 5, text.data() + text.size(), index);
    valid = error == std::errc() && end == text.data() + text.size() && index >= 0;
  }
  LOCKSTEP_CHECK(valid, "[device] got '", text, "', expected 'cpu', 'meta', 'cuda' or 'cuda:INDEX'");
}

std::ostream& operator<<(std::ostream& out, Device device) {
  switch (device.type) {
    case DeviceType::cpu: return out << "cpu";
    case DeviceType::meta: return out << "meta";
    case DeviceType::cuda: return out << "cuda:" << device.index;
  }
  return out;
}

}  // namespace lockstep

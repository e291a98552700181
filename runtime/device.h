// Where a tensor lives: `cpu`, `cuda:i`, or `meta`, which knows shapes and counts bytes but allocates and
// computes nothing.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string_view>

namespace lockstep {

enum class DeviceType : uint8_t { cpu, cuda, meta };

struct Device {
  DeviceType type = DeviceType::cpu;
  int16_t index = 0;

  Device() = default;
  Device(DeviceType type, int index = 0) : type(type), index(int16_t(index)) {}
  // "cpu", "meta", "cuda" (device 0) or "cuda:1"; throws Error for anything else.
  Device(std::string_view text);
  Device(const char* text) : Device(std::string_view(text)) {}

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_meta() const { return type == DeviceType::meta; }
  friend bool operator==(const Device&, const Device&) = default;
};

std::ostream& operator<<(std::ostream& out, Device device);

}  // namespace lockstep

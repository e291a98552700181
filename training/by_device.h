// Splits a list by device, in the order in which devices first appear: one kernel launch each.
#pragma once

#include <algorithm>
#include <vector>

#include "lockstep/runtime/device.h"

namespace lockstep {

template <class T>
struct DeviceList {
  Device device;
  std::vector<T> items;
};

template <class T, class DeviceOf>
std::vector<DeviceList<T>> by_device(const std::vector<T>& items, DeviceOf&& device_of) {
  std::vector<DeviceList<T>> lists;
  for (const T& item : items) {
    const Device device = device_of(item);
    auto list = std::ranges::find(lists, device, &DeviceList<T>::device);
    if (list == lists.end()) list = lists.insert(lists.end(), {device, {}});
    list->items.push_back(item);
  }
  return lists;
}

}  // namespace lockstep

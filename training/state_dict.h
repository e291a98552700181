// What a model or an optimizer saves: names and tensors, in order.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

using StateDict = std::vector<std::pair<std::string, Tensor>>;

}  // namespace lockstep

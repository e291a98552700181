// What modules return during Module::summary: the thread's trace, null while none is taken.
#pragma once

#include <unordered_map>

#include "lockstep/runtime/shape.h"

namespace lockstep {

class Module;
using ModuleTrace = std::unordered_map<const Module*, Shape>;  // the shape of a module's first result

ModuleTrace*& module_trace();

}  // namespace lockstep

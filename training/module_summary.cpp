// Module::summary: forward on meta copies of the parameters, put in place of the real ones for as long as it
// takes.
#include <algorithm>
#include <array>
#include <iomanip>
#include <sstream>
#include <unordered_set>

#include "lockstep/runtime/autograd.h"
#include "lockstep/training/module.h"
#include "lockstep/training/module_trace.h"

namespace lockstep {

namespace {

// Puts every tensor of a module on meta and the module in eval mode, and undoes both.
class MetaGuard {
 public:
  MetaGuard(Module& module, StateDict tensors)
      : modules_(module.named_modules()), tensors_(std::move(tensors)) {
    for (auto& [name, child] : modules_) training_.push_back(child->is_training());
    for (auto& [name, tensor] : tensors_) originals_.push_back(*tensor.handle());
    Tensors metas;
    for (auto& [name, tensor] : tensors_) metas.push_back(empty(tensor.shape(), tensor.dtype(), "meta"));
    module.eval();
    for (size_t i = 0; i < metas.size(); i++) tensors_[i].second.set_data(metas[i]);
    previous_trace_ = std::exchange(module_trace(), &trace_);
  }
  ~MetaGuard() {
    module_trace() = previous_trace_;
    for (size_t i = 0; i < originals_.size(); i++) *tensors_[i].second.handle() = originals_[i];
    // Outermost first: train() goes down, and a child's own mode is set last.
    for (size_t i = 0; i < modules_.size(); i++) modules_[i].second->train(training_[i]);
  }
  MetaGuard(const MetaGuard&) = delete;
  MetaGuard& operator=(const MetaGuard&) = delete;

  const ModuleTrace& trace() const { return trace_; }

 private:
  std::vector<std::pair<std::string, Module*>> modules_;
  StateDict tensors_;
  std::vector<bool> training_;
  std::vector<TensorImpl> originals_;
  ModuleTrace trace_;
  ModuleTrace* previous_trace_ = nullptr;
};

std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  for (int at = int(text.size()) - 3; at > 0; at -= 3) text.insert(size_t(at), 1, ',');
  return text;
}

std::string readable_bytes(size_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = double(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; unit++) value /= 1024;
  return concat(std::fixed, std::setprecision(unit == 0 ? 0 : 2), value, " ", units[unit]);
}

constexpr size_t kColumns = 5;
using Row = std::array<std::string, kColumns>;

std::string table(const std::vector<Row>& rows) {
  std::array<size_t, kColumns> widths{};
  for (const Row& row : rows)
    for (size_t i = 0; i < kColumns; i++) widths[i] = std::max(widths[i], row[i].size());
  std::ostringstream out;
  for (const Row& row : rows) {
    for (size_t i = 0; i < kColumns; i++) {
      bool number = i >= 3;
      out << (i == 0 ? "" : "  ") << (number ? std::right : std::left) << std::setw(int(widths[i])) << row[i];
    }
    out << "\n";
  }
  return out.str();
}

}  // namespace

std::string Module::summary(const Shape& input_shape, DType input_dtype) {
  StateDict all = named_parameters(), buffers = named_buffers();
  int64_t parameters = 0, trainable = 0;
  size_t parameter_bytes = 0, buffer_bytes = 0;
  for (auto& [name, tensor] : all) {
    parameters += tensor.numel();
    trainable += tensor.requires_grad() ? tensor.numel() : 0;
    parameter_bytes += tensor.bytes();
  }
  for (auto& [name, tensor] : buffers) buffer_bytes += tensor.bytes();

  std::vector<Row> rows{{"layer", "type", "output", "parameters", "bytes"}};
  {
    NoGradGuard no_grad;
    StateDict tensors = all;
    tensors.insert(tensors.end(), buffers.begin(), buffers.end());
    MetaGuard guard(*this, std::move(tensors));
    Tensor y = (*this)(empty(input_shape, input_dtype, "meta"));

    std::unordered_set<const TensorImpl*> counted;
    for (auto& [name, module] : named_modules()) {
      int64_t own = 0;
      size_t own_bytes = 0;
      for (auto& [key, tensor] : module->parameters_)
        if (tensor.defined() && counted.insert(tensor.handle().get()).second)
          own += tensor.numel(), own_bytes += tensor.bytes();
      for (auto& [key, tensor] : module->buffers_)
        if (tensor.defined() && counted.insert(tensor.handle().get()).second) own_bytes += tensor.bytes();
      if (module == this && !children_.empty() && own == 0) continue;
      auto output = guard.trace().find(module);
      rows.push_back({name.empty() ? "-" : name, module->type_name(),
                      output == guard.trace().end() ? "-" : concat(output->second),
                      own == 0 ? "-" : with_commas(own), own_bytes == 0 ? "-" : readable_bytes(own_bytes)});
    }
  }
  return table(rows) + concat(type_name(), ": ", with_commas(parameters), " parameters (",
                              with_commas(trainable), " trainable), ", readable_bytes(parameter_bytes),
                              "; buffers ", readable_bytes(buffer_bytes), "; input ", input_shape, "\n");
}

}  // namespace lockstep

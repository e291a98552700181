#include "tests/ops/op_harness.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/gradcheck.h"
#include "lockstep/runtime/parallel.h"

namespace lockstep::test {
namespace {

constexpr uint64_t kCotangentSeed = 1000;

struct Result {
  Tensor y;
  Tensors dx;  // undefined for inputs that take no gradient
};

bool takes_gradient(const OpInput& input) { return input.role == Role::floating && input.differentiable; }

bool differentiable(const OpRow& row) {
  for (const OpInput& input : row.inputs)
    if (takes_gradient(input)) return true;
  return false;
}

Tensor make_input(const OpInput& input, const Shape& shape, uint64_t seed, DType dtype) {
  std::vector<double> values = input.values;
  if (values.empty() || shape != input.shape) {
    bool is_boolean = input.role == Role::boolean;
    values = draw(seed, shape.numel(), is_boolean ? 0 : input.low, is_boolean ? 2 : input.high);
    if (input.role != Role::floating)
      for (double& value : values) value = std::floor(value);
  }
  Tensor x = from_vector(values, shape);
  if (input.role == Role::index) return x.to(DType::int64);
  return x.to(input.role == Role::boolean ? DType::boolean : dtype);
}

Tensors make_inputs(const OpRow& row, DType dtype) {
  Tensors inputs;
  for (size_t i = 0; i < row.inputs.size(); i++)
    inputs.push_back(make_input(row.inputs[i], row.inputs[i].shape, i + 1, dtype));
  return inputs;
}

Tensors to_double(const Tensors& inputs) {
  Tensors copies;
  for (const Tensor& x : inputs) copies.push_back(is_floating(x.dtype()) ? x.to(DType::float64) : x);
  return copies;
}

// Multiples of 1/64 up to 1: exact in every float dtype, so all of them get the same dy.
Tensor make_cotangent(const Tensor& y) {
  std::vector<double> values = draw(kCotangentSeed, y.numel(), -64, 65);
  for (double& value : values) value = std::floor(value) / 64;
  return from_vector(values, y.shape()).to(y.dtype());
}

// Forward, and backward from `dy` (by default make_cotangent's).
Result run(const OpRow& row, const Tensors& inputs, Tensor dy = {}) {
  Tensors leaves;
  for (size_t i = 0; i < inputs.size(); i++) {
    leaves.push_back(inputs[i].detach());
    if (takes_gradient(row.inputs[i])) leaves[i].set_requires_grad();
  }
  Result result;
  result.y = row.op(leaves);
  result.dx.resize(inputs.size());
  if (!differentiable(row)) return result;
  if (!dy.defined()) dy = make_cotangent(result.y);
  result.y.backward(dy);
  for (size_t i = 0; i < inputs.size(); i++)
    if (takes_gradient(row.inputs[i])) {
      result.dx[i] = leaves[i].grad();
      EXPECT_TRUE(result.dx[i].defined()) << "no gradient for input " << i;
      if (!result.dx[i].defined()) continue;
      EXPECT_EQ(result.dx[i].shape(), inputs[i].shape()) << "gradient of input " << i;
      EXPECT_EQ(result.dx[i].dtype(), inputs[i].dtype()) << "gradient of input " << i;
    }
  return result;
}

void expect_close_gradients(const Result& got, const Result& want, double tolerance) {
  for (size_t i = 0; i < got.dx.size(); i++)
    if (got.dx[i].defined() && want.dx[i].defined())
      expect_close(got.dx[i], want.dx[i], tolerance, concat("gradient of input ", i));
}

void check_values(const OpRow& row) {
  for (DType dtype : row.dtypes) {
    SCOPED_TRACE(concat(dtype));
    Tensors inputs = make_inputs(row, dtype), rounded = to_double(inputs);
    Result got = run(row, inputs);
    double allowed = row.slack * tolerance(dtype, row.length);
    expect_close(got.y, row.reference(rounded), allowed, "forward");
    EXPECT_TRUE(!row.same_dtype || got.y.dtype() == dtype) << "the result is " << got.y.dtype();
    if (dtype != DType::float64 && differentiable(row))
      expect_close_gradients(got, run(row, rounded), allowed);
  }
}

void check_gradients(const OpRow& row) {
  if (!differentiable(row) || !row.gradcheck) return;
  Tensors inputs = make_inputs(row, DType::float64), checked;
  for (size_t i = 0; i < inputs.size(); i++)
    if (takes_gradient(row.inputs[i])) checked.push_back(inputs[i].set_requires_grad());
  auto f = [&](const Tensors& x) {
    Tensors all = inputs;
    for (size_t i = 0, at = 0; i < inputs.size(); i++)
      if (takes_gradient(row.inputs[i])) all[i] = x[at++];
    return row.op(all);
  };
  GradcheckResult result = gradcheck(f, checked);
  EXPECT_TRUE(result.ok) << result.message;
}

void check_strides(const OpRow& row) {
  for (DType dtype : row.dtypes) {
    SCOPED_TRACE(concat(dtype));
    Tensors inputs = make_inputs(row, dtype), strided;
    for (const Tensor& x : inputs) strided.push_back(with_other_strides(x));
    Result want = run(row, inputs);
    Result got =
        run(row, strided, differentiable(row) ? with_other_strides(make_cotangent(want.y)) : Tensor());
    double allowed = row.slack * tolerance(dtype, row.length);
    expect_close(got.y, want.y, allowed, "forward");
    expect_close_gradients(got, want, allowed);
  }
}

void check_meta(const OpRow& row) {
  for (DType dtype : row.dtypes) {
    SCOPED_TRACE(concat(dtype));
    Tensors inputs = make_inputs(row, dtype), shapes;
    for (const Tensor& x : inputs) shapes.push_back(empty(x.shape(), x.dtype(), "meta"));
    Tensor y = row.op(inputs);
    Result meta = run(row, shapes, differentiable(row) ? empty(y.shape(), y.dtype(), "meta") : Tensor());
    EXPECT_EQ(meta.y.shape(), y.shape());
    EXPECT_EQ(meta.y.dtype(), y.dtype());
    EXPECT_EQ(meta.y.device(), Device("meta"));
    EXPECT_EQ(meta.y.storage()->data, nullptr);
    for (const Tensor& dx : meta.dx) EXPECT_TRUE(!dx.defined() || dx.device() == Device("meta"));
  }
}

void check_bad(const OpRow& row) {
  if (row.bad.empty()) return;
  Tensors inputs = make_inputs(row, row.dtypes.front());
  Result before = run(row, inputs);
  for (const BadCall& bad : row.bad) expect_error(bad.message_part, bad.call);
  Result after = run(row, inputs);
  expect_same_bits(before.y, after.y, "forward after errors");
  for (size_t i = 0; i < inputs.size(); i++)
    if (before.dx[i].defined()) expect_same_bits(before.dx[i], after.dx[i], "gradient after errors");
}

// A copy of x in the middle of a larger buffer whose borders hold a pattern.
class Guarded {
 public:
  explicit Guarded(const Tensor& x)
      : buffer_(std::make_shared<std::vector<std::byte>>(x.bytes() + 2 * kBorder, kPattern)) {
    if (x.bytes() != 0) std::memcpy(buffer_->data() + kBorder, x.contiguous().raw_data(), x.bytes());
    before_ = *buffer_;
    tensor_ = Tensor::wrap(buffer_->data() + kBorder, x.shape(), x.dtype(), buffer_);
  }
  const Tensor& tensor() const { return tensor_; }
  void check(const std::string& what) const {
    for (size_t i = 0; i < before_.size(); i++) {
      if (before_[i] == (*buffer_)[i]) continue;
      bool border = i < kBorder || i >= before_.size() - kBorder;
      ADD_FAILURE() << what << ": byte " << int64_t(i) - int64_t(kBorder)
                    << (border ? " of its surroundings" : "") << " was written";
      return;
    }
  }

 private:
  static constexpr size_t kBorder = 256;
  static constexpr std::byte kPattern{0xa5};
  std::shared_ptr<std::vector<std::byte>> buffer_;
  std::vector<std::byte> before_;
  Tensor tensor_;
};

void check_guard_words(const OpRow& row) {
  for (DType dtype : row.dtypes) {
    SCOPED_TRACE(concat(dtype));
    std::vector<Guarded> guarded;
    Tensors inputs;
    for (const Tensor& x : make_inputs(row, dtype)) inputs.push_back(guarded.emplace_back(x).tensor());
    if (differentiable(row)) {
      Guarded dy(make_cotangent(row.op(inputs)));
      run(row, inputs, dy.tensor());
      dy.check("dy");
    } else {
      run(row, inputs);
    }
    for (size_t i = 0; i < guarded.size(); i++) guarded[i].check(concat("input ", i));
  }
}

struct ThreadsGuard {
  explicit ThreadsGuard(int threads) : previous(num_threads()) { set_num_threads(threads); }
  ~ThreadsGuard() { set_num_threads(previous); }
  int previous;
};

void check_threads(const OpRow& row) {
  for (DType dtype : row.dtypes) {
    SCOPED_TRACE(concat(dtype));
    Tensors inputs = make_inputs(row, dtype);
    auto run_with = [&](int threads) {
      ThreadsGuard guard(threads);
      return run(row, inputs);
    };
    Result one = run_with(1);
    for (int threads : {2, 7}) {
      Result many = run_with(threads);
      expect_same_bits(one.y, many.y, concat("forward with ", threads, " threads"));
      for (size_t i = 0; i < inputs.size(); i++)
        if (one.dx[i].defined())
          expect_same_bits(one.dx[i], many.dx[i],
                           concat("gradient of input ", i, " with ", threads, " threads"));
    }
  }
}

void check_empty(const OpRow& row) {
  if (row.empty_shapes.empty()) return;
  ASSERT_EQ(row.empty_shapes.size(), row.inputs.size());
  for (DType dtype : row.dtypes) {
    SCOPED_TRACE(concat(dtype));
    Tensors inputs;
    for (size_t i = 0; i < row.inputs.size(); i++)
      inputs.push_back(make_input(row.inputs[i], row.empty_shapes[i], i + 1, dtype));
    Result got = run(row, inputs);
    expect_close(got.y, row.reference(to_double(inputs)), tolerance(dtype, 1), "forward of an empty tensor");
  }
}

}  // namespace

double tolerance(DType dtype, int64_t length) {
  double stored = 0, computed = 0;  // unit roundoffs
  switch (dtype) {
    case DType::float64: stored = computed = 0x1p-53; break;
    case DType::float32: stored = computed = 0x1p-24; break;
    case DType::float16: stored = 0x1p-11, computed = 0x1p-24; break;
    case DType::bfloat16: stored = 0x1p-8, computed = 0x1p-24; break;
    default: return 0;
  }
  return 4 * stored + computed * (16 + 4 * std::sqrt(double(length)));
}

void expect_close(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  ASSERT_TRUE(got.defined() && want.defined()) << what << ": undefined";
  ASSERT_EQ(got.shape(), want.shape()) << what;
  std::vector<double> a = got.to_vector<double>(), b = want.to_vector<double>();
  double squares = 0;
  int64_t finite = 0;
  for (double v : b)
    if (std::isfinite(v)) squares += v * v, finite++;
  const double rms = finite > 0 ? std::sqrt(squares / double(finite)) : 0;
  const double floor = got.dtype() == DType::float16 ? 0x1p-24 : 0;  // the smallest float16
  for (size_t i = 0; i < a.size(); i++) {
    bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    if (same || std::abs(a[i] - b[i]) <= tolerance * (std::abs(b[i]) + rms) + floor) continue;
    ADD_FAILURE() << what << ": element " << i << " of shape " << got.shape() << " is " << a[i]
                  << ", expected " << b[i] << ", off by " << std::abs(a[i] - b[i]) << ", allowed "
                  << tolerance * (std::abs(b[i]) + rms) + floor;
    return;
  }
}

void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
  ASSERT_TRUE(a.defined() && b.defined()) << what << ": undefined";
  ASSERT_EQ(a.shape(), b.shape()) << what;
  ASSERT_EQ(a.dtype(), b.dtype()) << what;
  Tensor left = a.detach().contiguous(), right = b.detach().contiguous();
  bool same = left.numel() == 0 || std::memcmp(left.raw_data(), right.raw_data(), left.bytes()) == 0;
  EXPECT_TRUE(same) << what << ": bits differ";
}

std::vector<double> draw(uint64_t seed, int64_t count, double low, double high) {
  std::vector<double> values;
  values.reserve(size_t(count));
  uint64_t state = seed * 0x9E3779B97F4A7C15u;
  for (int64_t i = 0; i < count; i++) {  // SplitMix64 (Steele, Lea & Flood 2014)
    state += 0x9E3779B97F4A7C15u;
    uint64_t word = state;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    word ^= word >> 31;
    values.push_back(low + (high - low) * (double(word >> 11) * 0x1p-53));
  }
  return values;
}

Tensor drawn(uint64_t seed, const Shape& shape, double low, double high, DType dtype) {
  return from_vector(draw(seed, shape.numel(), low, high), shape).to(dtype);
}

Tensor with_other_strides(const Tensor& x) {
  if (x.ndim() == 0) return x;
  Shape reversed, axes, apart;
  for (int i = x.ndim() - 1; i >= 0; i--) axes.push_back(i), reversed.push_back(x.shape()[i]);
  apart = reversed;
  apart[apart.size() - 1] *= 2;
  auto view = [&](const Tensor& base) { return base.slice(-1, 0, apart.back(), 2).permute(axes); };
  Tensor base = zeros(apart, x.dtype(), x.device());
  view(base).copy_(x.detach());
  return view(base);
}

void expect_error(const std::string& message_part, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected one with \"" << message_part << '"';
  } catch (const Error& error) {
    std::string message = error.what();
    EXPECT_EQ(message.substr(0, 1), "[") << message;
    EXPECT_NE(message.find(message_part), std::string::npos)
        << message << "\n  expected to contain: " << message_part;
  }
}

void check_op(const OpRow& row) {
  struct {
    const char* name;
    void (*check)(const OpRow&);
  } checks[] = {{"values", check_values},   {"gradients", check_gradients},
                {"strides", check_strides}, {"meta", check_meta},
                {"bad input", check_bad},   {"guard words", check_guard_words},
                {"threads", check_threads}, {"empty", check_empty}};
  for (auto [name, check] : checks) {
    SCOPED_TRACE(concat(row.name, ": ", name));
    try {
      check(row);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

}  // namespace lockstep::test

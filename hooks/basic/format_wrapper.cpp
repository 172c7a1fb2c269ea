// A hook that rounds the buckets of another hook: PyTorch's fp16_compress_wrapper and bf16_compress_wrapper.
#include <narrowcast/hooks.h>

#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <exception>
#include <memory>
#include <utility>

#include <narrowcast/wire_format.h>
#include "hooks/basic/basic_hooks.h"
#include "hooks/row/bucket.h"

namespace narrowcast::hooks {
namespace {

// The tensor of an inner hook's future. CommHook::parseHookResult is not used, because the callback must not own the
// hook: the future may be completed on a thread of the process group, which cannot destroy its own group.
at::Tensor tensor_in(const c10::IValue& result) {
  return result.isTensor() ? result.toTensor() : result.toTensorVector().at(0);
}

// Replaces a bucket's buffer until this object is destroyed.
class BufferInPlace {
 public:
  BufferInPlace(c10d::GradBucket& bucket, at::Tensor buffer)
      : bucket_(bucket), former_(std::exchange(bucket.getBufferRef(), std::move(buffer))) {}
  ~BufferInPlace() { std::swap(bucket_.getBufferRef(), former_); }
  BufferInPlace(const BufferInPlace&) = delete;
  BufferInPlace& operator=(const BufferInPlace&) = delete;

 private:
  c10d::GradBucket& bucket_;
  at::Tensor former_;
};

class FormatWrapper final : public CommHook {
 public:
  FormatWrapper(std::unique_ptr<CommHook> inner, WireFormat format)
      : inner_(std::move(inner)),
        buckets_(dtype_of(format)),
        name_(c10::str(to_string(format), "(", inner_->name(), ")")) {}

  std::string_view name() const override { return name_; }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    check_bucket(name(), bucket);
    const at::Tensor buffer = bucket.getBuffer();
    if (buffer.scalar_type() == buckets_.dtype()) {
      return run_inside(*inner_, bucket);
    }
    return buckets_.run(bucket, [&](const at::Tensor& rounded) {
      const BufferInPlace in_place(bucket, rounded);
      return run_inside(*inner_, bucket)
          ->then(
              [name = name_, buffer](c10::ivalue::Future& done) {
                if (done.hasError()) std::rethrow_exception(done.exception_ptr());
                const at::Tensor result = tensor_in(done.value());
                TORCH_CHECK_VALUE(result.sizes() == buffer.sizes(), "hook ", name, ": the result for a bucket of ",
                                  buffer.sizes(), " elements has shape ", result.sizes());
                buffer.copy_(result);
                return c10::IValue(buffer);
              },
              c10::TensorType::get());
    });
  }

  std::optional<double> compression() const override { return inner_->compression(); }
  HookState state(const std::vector<NamedParameter>& parameters) const override {
    HookState state = inner_->state(parameters);
    state.merge(CommHook::state(parameters));
    return state;
  }
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) override {
    CommHook::load_state(saved, parameters);
    inner_->load_state(saved, parameters);
  }
  void rescale_state(double factor) override { inner_->rescale_state(factor); }
  bool keeps_replicas_equal() const override { return inner_->keeps_replicas_equal(); }
  std::vector<int64_t> groups() const override { return inner_->groups(); }
  std::string nodes() const override { return inner_->nodes(); }
  std::string decision() const override { return inner_->decision(); }
  std::optional<double> predicted_seconds(int64_t numel) const override { return inner_->predicted_seconds(numel); }

 private:
  const std::unique_ptr<CommHook> inner_;
  CastBuckets buckets_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<CommHook> wrap_in_format(std::unique_ptr<CommHook> hook, const std::string& format) {
  TORCH_CHECK_VALUE(hook != nullptr, "hook to wrap in ", format, " must not be null");
  for (const WireFormat known : {WireFormat::kFp16, WireFormat::kBf16}) {
    if (format == to_string(known)) {
      return std::make_unique<FormatWrapper>(std::move(hook), known);
    }
  }
  TORCH_CHECK_VALUE(false, "format: must be fp16 or bf16, but is '", format, "'");
}

}  // namespace narrowcast::hooks

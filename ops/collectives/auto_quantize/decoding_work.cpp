#include "ops/collectives/auto_quantize/decoding_work.h"

#include <ATen/core/ivalue_inl.h>
#include <ATen/core/jit_type.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "ops/backend_errors.h"

namespace narrowcast::collectives {
namespace {

using c10::ivalue::Future;

// On a device with streams a future's callback runs on a stream of its own, and the allocator must learn that these
// tensors are used there.
void use_on_current_stream(const InFlight& in_flight) {
  const at::Device device = in_flight.received.device();
  if (device.is_cpu()) {
    return;
  }
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  in_flight.received.record_stream(stream);
  for (const at::Tensor& target : in_flight.exchange.targets) {
    target.record_stream(stream);
  }
}

c10::IValue decode(const Future& arrived, const InFlight& in_flight) {
  if (arrived.hasError()) {
    rethrow_as_backend_error(arrived.exception_ptr(), in_flight.exchange.rank,
                             operator_name(in_flight.exchange.collective));
  }
  use_on_current_stream(in_flight);
  finish(in_flight);
  return in_flight.exchange.targets;
}

class DecodingWork final : public c10d::Work {
 public:
  // `in_flight` comes without its work, which is `transfer`.
  DecodingWork(const c10::intrusive_ptr<c10d::Work>& transfer, const InFlight& in_flight)
      : Work(static_cast<int>(in_flight.exchange.rank), transfer->retrieveOpType()),
        exchange_(in_flight.exchange),
        transfer_(transfer),
        decoded_(transfer->getFuture()->then([in_flight](Future& arrived) { return decode(arrived, in_flight); },
                                             c10::ListType::ofTensors())) {}

  bool isCompleted() override { return decoded_->completed(); }
  bool isSuccess() const override { return decoded_->completed() && !decoded_->hasError(); }
  std::exception_ptr exception() const override { return decoded_->exception_ptr(); }
  std::vector<at::Tensor> result() override { return exchange_.targets; }
  c10::intrusive_ptr<Future> getFuture() override { return decoded_; }
  void synchronize() override { decoded_->wait(); }

  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout != kNoTimeout && !decoded_->completed()) {
      wait_for_transfer(timeout);
    }
    decoded_->waitAndThrow();
    return true;
  }

 private:
  // What fails otherwise than by being late is found in decoded_.
  void wait_for_transfer(std::chrono::milliseconds timeout) {
    try {
      transfer_->wait(timeout);
    } catch (const std::exception&) {
      if (!transfer_->isCompleted()) {
        rethrow_as_backend_error(std::current_exception(), exchange_.rank, operator_name(exchange_.collective));
      }
    }
  }

  const Exchange exchange_;
  const c10::intrusive_ptr<c10d::Work> transfer_;
  const c10::intrusive_ptr<Future> decoded_;
};

}  // namespace

// Neither the work nor its callback owns the group: either may be destroyed on a thread of the group, which cannot
// wait for its own end. Nor does the callback own the transfer, whose future owns the callback.
c10::intrusive_ptr<c10d::Work> decode_when_complete(InFlight in_flight) {
  const auto transfer = std::exchange(in_flight.work, nullptr);
  in_flight.exchange.group.reset();
  return c10::make_intrusive<DecodingWork>(transfer, in_flight);
}

}  // namespace narrowcast::collectives

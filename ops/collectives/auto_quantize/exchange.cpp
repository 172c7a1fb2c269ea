#include "ops/collectives/auto_quantize/exchange.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue_inl.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "ops/collectives/auto_quantize/agreement.h"
#include "ops/common/backend_errors.h"
#include "ops/common/libtorch_versions.h"

namespace narrowcast::collectives {
namespace {

using c10::ivalue::Future;

// The codes of all sources, one after the other.
at::Tensor encode(const Exchange& exchange) {
  std::vector<at::Tensor> codes = quantize_tensor_list(exchange.sources, exchange.encoding.qtype);
  for (at::Tensor& part : codes) {
    part = part.view(-1);
  }
  return codes.size() == 1 ? codes[0] : at::cat(codes);
}

// `codes` followed by zeros.
at::Tensor fill_up(const at::Tensor& codes, int64_t numel) {
  if (codes.numel() == numel) {
    return codes;
  }
  at::Tensor filled = at::zeros({numel}, codes.options());
  filled.narrow(0, 0, codes.numel()).copy_(codes);
  return filled;
}

// Codes are sent as bytes. As float16, which they are by name only, they could look like a NaN, and NCCL can be
// configured to look for NaNs.
at::Tensor as_bytes(const at::Tensor& codes) { return codes.view(at::kByte); }

std::vector<int64_t> in_bytes(std::vector<int64_t> numels, const at::Tensor& codes) {
  for (int64_t& numel : numels) {
    numel *= codes.element_size();
  }
  return numels;
}

void start_all_gather(InFlight& in_flight) {
  in_flight.sent = fill_up(in_flight.sent, in_flight.stride);
  const auto& group = in_flight.exchange.group;
  in_flight.received = at::empty({group->getSize() * in_flight.stride}, in_flight.sent.options());
  at::Tensor sent = as_bytes(in_flight.sent);
  at::Tensor received = as_bytes(in_flight.received);
  in_flight.work = libtorch::all_gather_single(group, received, sent);
}

void start_all_to_all(InFlight& in_flight) {
  const auto& receives = in_flight.exchange.receives;
  const int64_t numel = std::accumulate(receives.begin(), receives.end(), int64_t{0});
  in_flight.received = at::empty({numel}, in_flight.sent.options());
  at::Tensor sent = as_bytes(in_flight.sent);
  at::Tensor received = as_bytes(in_flight.received);
  std::vector<int64_t> bytes_sent = in_bytes(in_flight.exchange.sends, in_flight.sent);
  std::vector<int64_t> bytes_received = in_bytes(receives, in_flight.received);
  in_flight.work = libtorch::all_to_all_single(in_flight.exchange.group, received, sent, bytes_received, bytes_sent);
}

// On a device with streams, a future's callback runs on a separate stream. The allocator must know that these tensors
// are used there.
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

// The event on a device's stream at which the outputs are written. Empty on the CPU, where the future shows it. It is
// read once the future of the decoding is complete.
using WrittenEvent = std::optional<c10::Event>;

c10::IValue decode(const Future& arrived, const InFlight& in_flight, WrittenEvent& written) {
  if (arrived.hasError()) {
    rethrow_as_backend_error(arrived.exception_ptr(), in_flight.exchange.rank,
                             operator_name(in_flight.exchange.collective));
  }
  use_on_current_stream(in_flight);
  finish(in_flight);
  const at::Device device = in_flight.received.device();
  if (!device.is_cpu()) {
    written.emplace(device.type());
    written->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  return in_flight.exchange.targets;
}

class DecodingWork final : public c10d::Work {
 public:
  // `in_flight` has no work; its work is `transfer`.
  DecodingWork(const c10::intrusive_ptr<c10d::Work>& transfer, const InFlight& in_flight)
      : Work(static_cast<int>(in_flight.exchange.rank), transfer->retrieveOpType()),
        exchange_(in_flight.exchange),
        is_enqueued_(in_flight.is_enqueued),
        transfer_(transfer),
        decoded_(transfer->getFuture()->then(
            [in_flight, written = written_](Future& arrived) { return decode(arrived, in_flight, *written); },
            c10::ListType::ofTensors())) {}

  // On a GPU the future is complete as soon as everything is enqueued. Then `transfer_` shows the end or the failure of
  // the transfer, and the event shows the end of the decoding.
  bool isCompleted() override { return is_over(); }
  bool isSuccess() const override { return is_over() && exception() == nullptr; }
  std::exception_ptr exception() const override {
    const std::exception_ptr error = decoded_->exception_ptr();
    return error != nullptr ? error : transfer_->exception();
  }
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
  bool is_over() const {
    // On the CPU a transfer may be reported complete a moment after its future is complete.
    if (!decoded_->completed() || (is_enqueued_ && !transfer_->isCompleted())) {
      return false;
    }
    return exception() != nullptr || !written_->has_value() || (*written_)->query();
  }

  // Throws only if the transfer is late. Other failures are in decoded_.
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
  const bool is_enqueued_;
  const c10::intrusive_ptr<c10d::Work> transfer_;
  const std::shared_ptr<WrittenEvent> written_ = std::make_shared<WrittenEvent>();
  const c10::intrusive_ptr<Future> decoded_;
};

}  // namespace

const char* operator_name(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
      return "auto_quantize_all_gather";
    case Collective::kAllToAll:
      return "auto_quantize_all_to_all";
    case Collective::kAllToAllSingle:
      return "auto_quantize_all_to_all_single";
  }
  return "another collective";
}

InFlight start(Exchange exchange) {
  const int64_t longest = agree(exchange);
  const bool all_gather = exchange.collective == Collective::kAllGather;
  InFlight in_flight{.exchange = std::move(exchange), .sent = {}, .received = {}, .stride = 0, .work = {}};
  in_flight.stride = all_gather ? longest : 0;
  in_flight.sent = encode(in_flight.exchange);
  in_flight.is_enqueued = !in_flight.sent.is_cpu();
  in_flight.exchange.sources.clear();  // May be freed while the codes are in flight.
  with_backend_errors(in_flight.exchange.rank, operator_name(in_flight.exchange.collective),
                      [&] { all_gather ? start_all_gather(in_flight) : start_all_to_all(in_flight); });
  return in_flight;
}

void finish(const InFlight& in_flight) {
  const at::AutoDispatchBelowAutograd below_autograd;  // This may be another thread than the caller's.
  const Encoding& encoding = in_flight.exchange.encoding;
  const at::Tensor decoded = dequantize_tensor(in_flight.received, encoding.qtype, encoding.quant_loss);
  int64_t first = 0;
  for (const at::Tensor& target : in_flight.exchange.targets) {
    target.copy_(decoded.narrow(0, first, target.numel()).view(target.sizes()));
    first += in_flight.stride > 0 ? in_flight.stride : target.numel();
  }
}

void run(Exchange exchange) {
  const InFlight in_flight = start(std::move(exchange));
  with_backend_errors(in_flight.exchange.rank, operator_name(in_flight.exchange.collective),
                      [&] { in_flight.work->wait(); });
  finish(in_flight);
}

// Neither the work nor its callback owns the group, because either may be destroyed on a thread of the group, which
// cannot wait for its own end. The callback does not own the transfer either, because the transfer's future owns the
// callback.
c10::intrusive_ptr<c10d::Work> decode_when_complete(InFlight in_flight) {
  const auto transfer = std::exchange(in_flight.work, nullptr);
  in_flight.exchange.group.reset();
  return c10::make_intrusive<DecodingWork>(transfer, in_flight);
}

}  // namespace narrowcast::collectives

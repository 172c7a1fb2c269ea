#include "ops/collectives/auto_quantize/exchange.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <utility>

#include "ops/backend_errors.h"
#include "ops/collectives/auto_quantize/agreement.h"
#include "ops/libtorch_versions.h"

namespace narrowcast::collectives {
namespace {

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

void start_all_gather(InFlight& in_flight) {
  in_flight.sent = fill_up(in_flight.sent, in_flight.stride);
  const auto& group = in_flight.exchange.group;
  in_flight.received = at::empty({group->getSize() * in_flight.stride}, in_flight.sent.options());
  in_flight.work = libtorch::all_gather_single(group, in_flight.received, in_flight.sent);
}

void start_all_to_all(InFlight& in_flight) {
  auto& sends = in_flight.exchange.sends;
  auto& receives = in_flight.exchange.receives;
  const int64_t numel = std::accumulate(receives.begin(), receives.end(), int64_t{0});
  in_flight.received = at::empty({numel}, in_flight.sent.options());
  in_flight.work =
      libtorch::all_to_all_single(in_flight.exchange.group, in_flight.received, in_flight.sent, receives, sends);
}

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
  in_flight.exchange.sources.clear();  // May be freed while the codes are on their way.
  with_backend_errors(in_flight.exchange.rank, operator_name(in_flight.exchange.collective),
                      [&] { all_gather ? start_all_gather(in_flight) : start_all_to_all(in_flight); });
  return in_flight;
}

void finish(const InFlight& in_flight) {
  const at::AutoDispatchBelowAutograd below_autograd;  // The thread need not be the caller's.
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

}  // namespace narrowcast::collectives

// The operators auto_quantize_*, for all devices at once: everything here goes through the dispatcher and the process
// group. They are registered as CompositeExplicitAutograd, which also answers a call with an empty list, where no
// tensor names a device (CPU and CUDA kernels would never be asked, and the error would be the dispatcher's). The
// meta kernels take precedence over it.
#include <torch/library.h>

#include <optional>
#include <string_view>

#include "ops/collectives/auto_quantize/exchange.h"
#include "ops/collectives/group_name.h"
#include "ops/meta/meta.h"

namespace narrowcast::collectives {
namespace {

// The arguments that say how tensors travel.
struct Way {
  std::string_view qtype;
  std::optional<double> quant_loss;
  bool async_op;

  Encoding operator()() const {
    if (async_op) {
      meta::refuse_async_op();
    }
    return {parse_dquant_type(qtype), quant_loss};
  }
};

void run_all_gather(at::TensorList outputs, const at::Tensor& input, std::string_view qtype,
                    std::string_view group_name, std::optional<double> quant_loss, bool async_op) {
  run(plan_all_gather(find_group(group_name), Way{qtype, quant_loss, async_op}, outputs, input));
}

void run_all_to_all(at::TensorList outputs, at::TensorList inputs, std::string_view qtype, std::string_view group_name,
                    std::optional<double> quant_loss, bool async_op) {
  run(plan_all_to_all(find_group(group_name), Way{qtype, quant_loss, async_op}, outputs, inputs));
}

void run_all_to_all_single(const at::Tensor& output, const at::Tensor& input, std::string_view qtype,
                           std::string_view group_name, at::OptionalIntArrayRef output_split_sizes,
                           at::OptionalIntArrayRef input_split_sizes, std::optional<double> quant_loss, bool async_op) {
  run(plan_all_to_all_single(find_group(group_name), Way{qtype, quant_loss, async_op}, output, input,
                             {output_split_sizes, input_split_sizes}));
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd, m) {
  m.impl("auto_quantize_all_gather", &run_all_gather);
  m.impl("auto_quantize_all_to_all", &run_all_to_all);
  m.impl("auto_quantize_all_to_all_single", &run_all_to_all_single);
}

}  // namespace narrowcast::collectives

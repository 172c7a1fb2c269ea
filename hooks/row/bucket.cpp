#include "hooks/row/bucket.h"

#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/operators/meta.h"

namespace narrowcast::hooks {

using collectives::ElementRange;

void check_dense(std::string_view hook, const c10d::GradBucket& bucket) {
  TORCH_CHECK_VALUE(bucket.getBuffer().layout() == at::kStrided, hook, ": bucket ", bucket.getIndex(),
                    " holds sparse gradients, but this hook averages only dense ones: create the module without sparse "
                    "gradients, or use the hook allreduce or bf16_compress");
}

void check_bucket(std::string_view hook, const c10d::GradBucket& bucket, std::optional<c10::DeviceType> device) {
  check_dense(hook, bucket);
  const at::Tensor& buffer = bucket.getBuffer();
  TORCH_CHECK_VALUE(buffer.device().is_cpu() || buffer.device().is_cuda(), hook, ": bucket ", bucket.getIndex(),
                    " must be on the CPU or a GPU, but is on ", buffer.device());
  TORCH_CHECK_VALUE(!device || buffer.device().type() == *device, hook, ": bucket ", bucket.getIndex(), " is on ",
                    buffer.device(), ", but the hook was made for gradients on ",
                    c10::DeviceTypeName(device.value_or(c10::DeviceType::CPU), /*lower_case=*/true));
  TORCH_CHECK_TYPE(meta::is_float(buffer.scalar_type()), hook, ": bucket ", bucket.getIndex(),
                   " must be of type float, double, half or bfloat16, but is ", buffer.scalar_type());
  TORCH_CHECK_VALUE(buffer.is_contiguous(), hook, ": bucket ", bucket.getIndex(), " must be contiguous");
}

LastExchange::FuturePtr LastExchange::set(FuturePtr future) {
  // A future refers weakly to storages. On their GPUs, waiting for the future makes the current stream wait.
  done_ = future->then([](c10::ivalue::Future& exchange) { return std::make_pair(c10::IValue(), exchange.storages()); },
                       c10::NoneType::get());
  return future;
}

std::vector<int64_t> real_sizes(const at::Tensor& parameter) {
  std::vector<int64_t> sizes = parameter.sizes().vec();
  if (!parameter.is_complex()) return sizes;
  if (sizes.empty()) sizes.push_back(1);
  sizes.back() *= numbers_per_element(parameter);
  return sizes;
}

ParameterRanges parameter_ranges(const c10d::GradBucket& bucket) {
  const std::vector<at::Tensor> parameters = bucket.getParameters();
  if (parameters.empty()) {
    return {};
  }
  const std::vector<at::Tensor> gradients = bucket.getGradients();  // Views of the buffer.
  ParameterRanges ranges;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t begin =
        (gradients[i].storage_offset() - bucket.getBuffer().storage_offset()) * numbers_per_element(parameters[i]);
    ranges.push_back(
        {parameters[i].unsafeGetTensorImpl(), {begin, numbers_in(parameters[i])}, is_one_dimensional(parameters[i])});
  }
  return ranges;
}

ParameterNames::ParameterNames(const std::vector<NamedParameter>& parameters) : parameters_(parameters) {
  for (const NamedParameter& parameter : parameters) {
    names_.emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name);
  }
}

const std::string& ParameterNames::at(const void* parameter) const {
  const auto found = names_.find(parameter);
  TORCH_CHECK_VALUE(
      found != names_.end(), "the hook has state of a parameter that is not among the ", parameters_.size(),
      " given ones",
      parameters_.empty() ? "" : c10::str(", '", parameters_.front().name, "' to '", parameters_.back().name, "'"),
      ": give the parameters of the model with this hook, also those that are frozen now");
  return found->second;
}

void check_saved_parameters(const FormerRanks& saved, const std::vector<NamedParameter>& parameters,
                            const std::vector<std::string>& prefixes) {
  std::set<std::string> given;
  for (const NamedParameter& parameter : parameters) given.insert(parameter.name);
  std::set<std::string> unknown;
  const auto check = [&](const HookState& state) {
    for (const std::string& prefix : prefixes) {
      for (const auto& [name, tensor] : part_of(state, prefix)) {
        if (!given.contains(name)) unknown.insert(c10::str("'", name, "'"));
      }
    }
  };
  check(saved.first);
  for (const HookState& state : saved.states) check(state);
  TORCH_CHECK_VALUE(unknown.empty(),
                    "the saved state is of parameters that the model does not have: ", c10::Join(", ", unknown));
}

std::vector<int64_t> place_in(const HookState& state, const std::string& parameter, int64_t least, int64_t most) {
  const at::Tensor& place = state.at(kPlace + parameter);
  NARROWCAST_CHECK_INPUT(place.scalar_type() == at::kLong && place.numel() >= least && place.numel() <= most &&
                             place.ge(0).all().item<bool>(),
                         "the hook's state '", kPlace, parameter, "' is not a valid place");
  const at::Tensor numbers = place.cpu().contiguous();
  return {numbers.const_data_ptr<int64_t>(), numbers.const_data_ptr<int64_t>() + numbers.numel()};
}

// A parameter without elements begins at the same place as the next one.
void insert_parameter(ParameterRanges& ranges, const NamedParameter& parameter, int64_t begin) {
  const ParameterRange inserted{parameter.tensor.unsafeGetTensorImpl(),
                                {begin, numbers_in(parameter.tensor)},
                                is_one_dimensional(parameter.tensor)};
  const auto place = [](const ParameterRange& other) { return std::pair(other.range.begin, other.range.numel); };
  ranges.insert(std::ranges::upper_bound(ranges, place(inserted), {}, place), inserted);
}

std::optional<int64_t> gap_in(const ParameterRanges& ranges) {
  int64_t next = 0;
  for (const ParameterRange& parameter : ranges) {
    if (parameter.range.begin != next) {
      return next;
    }
    next += parameter.range.numel;
  }
  return std::nullopt;
}

std::vector<ElementRange> one_dimensional_ranges(const ParameterRanges& ranges) {
  std::vector<ElementRange> joined;
  for (const ParameterRange& parameter : ranges) {
    if (!parameter.one_dimensional || parameter.range.numel == 0) {
      continue;
    }
    if (!joined.empty() && joined.back().begin + joined.back().numel == parameter.range.begin) {
      joined.back().numel += parameter.range.numel;
    } else {
      joined.push_back(parameter.range);
    }
  }
  return joined;
}

bool NewBuckets::notice(const c10d::GradBucket& bucket, const ParameterRanges& ranges) {
  const size_t index = bucket.getIndex();
  const bool continues = index > last_;
  last_ = index;
  Seen now{bucket.getBuffer().numel(), bucket.getBuffer().device(), ranges};
  const auto found = seen_.find(index);
  const bool is_same = found != seen_.end() && found->second == now;
  if (!is_same) {
    seen_.insert_or_assign(index, std::move(now));
  }
  found_ = !is_same || (continues && found_);
  return found_;
}

}  // namespace narrowcast::hooks

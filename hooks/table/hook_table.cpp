#include "hooks/table/hook_table.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/basic/basic_hooks.h"
#include "hooks/power_sgd/power_sgd.h"
#include "hooks/quantized/encoded_all_reduce_hook.h"
#include "hooks/row/execution.h"
#include "hooks/row/hook_options.h"
#include "hooks/table/auto_hook.h"
#include "hooks/table/post_local_sgd.h"
#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/algorithms/two_levels.h"
#include "ops/collectives/all_reduce/codec/affine_codec.h"
#include "ops/comm/groups/agree.h"
#include "ops/comm/groups/group.h"

namespace narrowcast::hooks {
namespace {

using node::NodeLayout;

constexpr ReferenceTolerance kReferenceOfFloat32{};
constexpr ReferenceTolerance kReferenceOfNarrowFormats{.absolute = 1e-4};

int64_t bytes_of_all_reduce(const GradientSizes& gradients, const NodeLayout& layout, const HookOptions& /*options*/) {
  return ring_all_reduce_bytes(gradients.numel * gradients.element_size, layout.world_size());
}

int64_t bytes_of_nothing(const GradientSizes&, const NodeLayout& /*layout*/, const HookOptions& /*options*/) {
  return 0;
}

// One byte per element, to every other rank.
int64_t bytes_of_codes(const GradientSizes& gradients, const NodeLayout& layout, const HookOptions& /*options*/) {
  return (layout.world_size() - 1) * gradients.numel;
}

int64_t bytes_of_channels(const GradientSizes& gradients, const NodeLayout& layout, const HookOptions& options) {
  return (layout.world_size() - 1) * collectives::affine_message_bytes(gradients.numel, options.channel_size.value());
}

ErrorTerms terms_of_float32(const SentBucket& bucket, const NodeLayout& layout, const HookOptions& /*options*/) {
  return float32_terms(bucket, layout.world_size());
}

ErrorTerms terms_of_one_row(const SentBucket& bucket, const NodeLayout& layout, const HookOptions& /*options*/) {
  return affine_terms(bucket, layout.world_size(), bucket.gradients.numel());
}

ErrorTerms terms_of_channels(const SentBucket& bucket, const NodeLayout& layout, const HookOptions& options) {
  return affine_terms(bucket, layout.world_size(), options.channel_size.value());
}

// A mean in a float format: PyTorch's compressing hooks.
HookRow cast_row(std::string name, WireFormat format) {
  return {
      .name = std::move(name),
      .make = [format](const HookRow& row, const HookOptions& options) { return make_cast_hook(row, options, format); },
      .payload_bytes =
          [format](const GradientSizes& gradients, const NodeLayout& layout, const HookOptions& /*options*/) {
            return ring_all_reduce_bytes(encoded_size(gradients.numel, format), layout.world_size());
          },
      .error_terms = [format](
                         const SentBucket& bucket, const NodeLayout& layout,
                         const HookOptions& /*options*/) { return cast_terms(bucket, layout.world_size(), format); },
      .reference_tolerance = kReferenceOfNarrowFormats};
}

HookRow bf16_compress_row() {
  constexpr WireFormat kFormat = WireFormat::kBf16;
  HookRow row = cast_row(kBf16Hook, kFormat);
  row.sent_with_auto = kFormat;
  return row;
}

// Bytes of the message of an array's largest segment, which one rank of a node sends.
int64_t bytes_of_segment(int64_t numel, const NodeLayout& layout, WireFormat format) {
  return encoded_size(collectives::largest_segment(layout, numel), format);
}

// QuantizedAllReduceHook under one of its names.
HookRow wire_row(std::string name, WireFormat default_format) {
  return {.name = std::move(name),
          .make = [](const HookRow& row,
                     const HookOptions& options) { return std::make_unique<QuantizedAllReduceHook>(row, options); },
          .payload_bytes =
              [](const GradientSizes& gradients, const NodeLayout& layout, const HookOptions& options) {
                // Exempt elements are sent as float32 beside the message, in which they are 0.
                const int64_t exempt = options.wire.exempt_one_dimensional ? gradients.one_dimensional : 0;
                const int64_t bytes = bytes_of_segment(gradients.numel, layout, options.wire.format.value()) +
                                      bytes_of_segment(exempt, layout, WireFormat::kFp32);
                return codec::wire::is_sparse(options.wire.format.value())
                           ? (layout.nodes() - 1) * bytes
                           : ring_all_reduce_bytes(bytes, layout.nodes());
              },
          .error_terms =
              [](const SentBucket& bucket, const NodeLayout& layout, const HookOptions& options) {
                return wire_terms(bucket, layout, {options.wire.format.value(), options.wire});
              },
          .options = {OptionKind::kRounding, OptionKind::kErrorFeedback, OptionKind::kExemption, OptionKind::kLevels,
                      OptionKind::kLink, OptionKind::kConnections},
          .format = default_format};
}

// The same hook with a selectable format.
HookRow taking_any_format(HookRow row) {
  row.options.insert(OptionKind::kFormat);
  return row;
}

// The same wire-format hook, as a candidate of auto.
HookRow for_auto(HookRow row) {
  row.sent_with_auto = row.format;
  return row;
}

std::list<HookRow> rows_of_all_hooks() {
  std::list<HookRow> rows = {{.name = kNoHook,
                              .payload_bytes = bytes_of_all_reduce,
                              .error_terms = terms_of_float32,
                              .reference_tolerance = kReferenceOfFloat32},
                             {.name = kAllReduceHook,
                              .make = make_allreduce_hook,
                              .payload_bytes = bytes_of_all_reduce,
                              .error_terms = terms_of_float32,
                              .reference_tolerance = kReferenceOfFloat32,
                              .sent_with_auto = WireFormat::kFp32},
                             cast_row("fp16_compress", WireFormat::kFp16),
                             bf16_compress_row(),
                             {.name = "quantize_per_tensor",
                              .make = make_quantize_per_tensor_hook,
                              .payload_bytes = bytes_of_codes,
                              .error_terms = terms_of_one_row,
                              .reference_tolerance = kReferenceOfNarrowFormats},
                             {.name = "quantize_per_channel",
                              .make = make_quantize_per_channel_hook,
                              .payload_bytes = bytes_of_channels,
                              .error_terms = terms_of_channels,
                              .reference_tolerance = kReferenceOfNarrowFormats,
                              .options = {OptionKind::kChannels}},
                             {.name = kNoExchangeHook,
                              .make = make_noop_hook,
                              .payload_bytes = bytes_of_nothing,
                              .error_terms = terms_of_float32,  // Holds once its gradients are averaged.
                              .reference_tolerance = kReferenceOfFloat32,
                              .keeps_replicas_equal = false},
                             taking_any_format(wire_row(kAnyFormatHook, WireFormat::kInt8B128)),
                             for_auto(wire_row("int8", WireFormat::kInt8B128)),
                             // Not for auto: more bytes than var6, var4 and int8, and larger errors.
                             wire_row("int6", WireFormat::kInt6B32),
                             wire_row("int4", WireFormat::kInt4B32),
                             wire_row("fp8", WireFormat::kFp8E4M3B32),
                             for_auto(wire_row("var6", WireFormat::kVar6)),
                             for_auto(wire_row("var5", WireFormat::kVar5)),
                             for_auto(wire_row("var4", WireFormat::kVar4)),
                             wire_row("var3", WireFormat::kVar3),
                             for_auto(wire_row("fp32", WireFormat::kFp32)),
                             auto_row(),
                             post_local_sgd_row()};
  for (HookRow& row : power_sgd_rows()) rows.push_back(std::move(row));
  return rows;
}

// The same function for options that may lack values that filled_in adds.
template <class Result, class First>
std::function<Result(First, const HookOptions&)> filling_in(
    const std::shared_ptr<const HookRow>& row, const std::function<Result(First, const HookOptions&)>& function) {
  if (!function) {
    return nullptr;
  }
  return [row, function](First first, const HookOptions& options) { return function(first, filled_in(*row, options)); };
}

template <class Result, class Gradients>
std::function<Result(Gradients, const NodeLayout&, const HookOptions&)> filling_in(
    const std::shared_ptr<const HookRow>& row,
    const std::function<Result(Gradients, const NodeLayout&, const HookOptions&)>& function) {
  return [row, function](Gradients gradients, const NodeLayout& layout, const HookOptions& options) {
    return function(gradients, layout, filled_in(*row, options));
  };
}

// The row as it is entered in the table.
HookRow entered(HookRow row) {
  const auto own = std::make_shared<const HookRow>(row);
  row.make = filling_in(own, own->make);
  row.payload_bytes = filling_in(own, own->payload_bytes);
  row.error_terms = filling_in(own, own->error_terms);
  row.staged_numel = filling_in(own, own->staged_numel);
  return row;
}

std::list<HookRow>& hook_table() {
  static std::list<HookRow> table = [] {
    std::list<HookRow> rows = rows_of_all_hooks();
    for (HookRow& row : rows) row = entered(std::move(row));
    return rows;
  }();
  return table;
}

template <class Predicate>
std::string joined_names(const Predicate& predicate) {
  std::string joined;
  for (const HookRow& row : hook_rows()) {
    if (predicate(row)) joined += (joined.empty() ? "" : ", ") + row.name;
  }
  return joined;
}

void check_device(const HookOptions& options) {
  TORCH_CHECK_VALUE(!options.device || collectives::moves_tensors_on(*options.device, options.process_group),
                    "device: the process group does not move tensors on ",
                    c10::DeviceTypeName(options.device.value_or(at::kCPU), /*lower_case=*/true));
  TORCH_CHECK_VALUE(!options.wire.connections || !averages_on_gpus(options),
                    "connections: ", connections_text(options.wire.connections),
                    " has no effect on GPUs, where NCCL opens its own");
}

// The hook, its device and the options that it takes: ranks that differ in them would send messages that others do not
// expect.
std::vector<collectives::Entry> compared_entries(const HookRow& row, const HookOptions& options) {
  std::vector<collectives::Entry> entries{{"hook", row.name}, {"device", averages_on_gpus(options) ? "cuda" : "cpu"}};
  for (const NamedOption& option : named_options(options)) {
    if (row.takes(option.kind)) entries.push_back({option.name, text_of(option.value)});
  }
  return entries;
}

}  // namespace

const HookRow& hook_row(const std::string& name) {
  const std::list<HookRow>& rows = hook_rows();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const HookRow& row) { return row.name == name; });
  TORCH_CHECK_VALUE(found != rows.end(), "hook: unknown name '", name,
                    "'; known: ", joined_names([](const HookRow&) { return true; }));
  return *found;
}

const std::list<HookRow>& hook_rows() { return hook_table(); }

std::string hook_names_that_take(OptionKind kind) {
  return joined_names([=](const HookRow& row) { return row.takes(kind); });
}

std::list<HookRow>::const_iterator add_hook_row(HookRow row) {
  return hook_table().insert(hook_table().end(), entered(std::move(row)));
}

void remove_hook_row(std::list<HookRow>::const_iterator row) { hook_table().erase(row); }

std::unique_ptr<CommHook> create_comm_hook(const std::string& name, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                           const std::function<HookOptions()>& read_options) {
  HookOptions options;
  const auto check = [&] {
    options = read_options();
    options.process_group = group;
    check_hook_options(name, options);
    TORCH_CHECK_VALUE(group || !hook_row(name).make, "process_group must be given to make the hook '", name,
                      "', but is null");
    if (group) check_device(options);
  };
  if (!group || group->getSize() == 1) {
    check();
  } else {
    collectives::Announcement own{.call = "create_comm_hook", .refusal = collectives::refusal_of(check)};
    if (!own.refusal) own.entries = compared_entries(hook_row(name), options);
    collectives::agree(group, own);
  }
  const HookRow& row = hook_row(name);
  return row.make ? row.make(row, options) : nullptr;
}

}  // namespace narrowcast::hooks

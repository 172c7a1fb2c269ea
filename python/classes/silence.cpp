#include "python/classes/silence.h"

#include <c10/util/Exception.h>

#include <string>
#include <variant>

#include "hooks/row/option_values.h"

namespace narrowcast::classes {
namespace {

using std::chrono::milliseconds;

constexpr double kMostSeconds = 1e6;

}  // namespace

std::optional<double> parse_silence(const hooks::OptionValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return std::nullopt;
  double seconds = 0;
  hooks::read_option(kSilence, value, seconds);
  return seconds;
}

milliseconds checked_silence(std::optional<double> seconds, const ProcessGroupPtr& group, c10::DeviceType device) {
  const bool is_possible = GroupWatch::is_possible(group, device);
  if (!seconds) return is_possible ? GroupWatch::Options().silence : milliseconds(0);
  const double least = static_cast<double>(RankWatch::kLeastSilence.count()) / 1000;
  TORCH_CHECK_VALUE(*seconds == 0 || (*seconds >= least && *seconds <= kMostSeconds), kSilence, ": must be 0 or in ",
                    least, "..", kMostSeconds, ", but is ", *seconds);
  TORCH_CHECK_VALUE(*seconds == 0 || is_possible, kSilence, ": group \"", group->getGroupName(), "\" does not move ",
                    c10::DeviceTypeName(device, /*lower_case=*/true),
                    " tensors by Gloo, whose waits for a silent rank can be ended; set it to 0");
  return milliseconds(static_cast<int64_t>(*seconds * 1000));
}

std::shared_ptr<GroupWatch> start_watch(const ProcessGroupPtr& group, milliseconds silence) {
  return GroupWatch::of_group(group, {.silence = silence, .on_loss = [](const std::string& why) { TORCH_WARN(why); }});
}

}  // namespace narrowcast::classes

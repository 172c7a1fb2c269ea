// The option "silence_seconds" of the classes: a rank that sends no heartbeat for this long is lost.
#pragma once

#include <c10/core/DeviceType.h>

#include <chrono>
#include <memory>
#include <optional>

#include <narrowcast/hook_options.h>
#include "trainer/ddp/process_group/group_watch.h"

namespace narrowcast::classes {

inline constexpr const char* kSilence = "silence_seconds";

// An option's value. No value stands for the default. c10::TypeError unless it is a number.
std::optional<double> parse_silence(const hooks::OptionValue& value);

// The heartbeat timeout of `group`, whose tensors are on `device`. By default it is 30 s where waits can be ended, else
// 0. c10::ValueError if `seconds` is neither 0 nor at least 3, or is not 0 where waits cannot be ended.
std::chrono::milliseconds checked_silence(std::optional<double> seconds, const ProcessGroupPtr& group,
                                          c10::DeviceType device);

// GroupWatch::of_group, a collective. Prints a warning when a rank is lost, because Gloo's own errors do not name it.
std::shared_ptr<GroupWatch> start_watch(const ProcessGroupPtr& group, std::chrono::milliseconds silence);

}  // namespace narrowcast::classes

#include "trainer/train/training/counters.h"

#include <ATen/ops/full.h>

#include <string>

#include <narrowcast/errors.h>

namespace narrowcast::training {
namespace {

using checkpoint::TensorMap;

constexpr const char* kWindowLoss = "counters.window_loss";

// As float64 or int64: text would lose bits, and cannot hold infinities.
void put(TensorMap& tensors, const char* name, double value) {
  tensors[std::string("counters.") + name] = at::full({}, value, at::kDouble);
}
void put(TensorMap& tensors, const char* name, int64_t value) {
  tensors[std::string("counters.") + name] = at::full({}, value, at::kLong);
}
void put(TensorMap& tensors, const char* name, const std::optional<double>& value) {
  if (value.has_value()) {
    put(tensors, name, *value);
  }
}

template <class Number>
Number number_of(const TensorMap& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  NARROWCAST_CHECK_INPUT(found != tensors.end(), "'", name, "' is missing");
  const at::ScalarType dtype = std::is_same_v<Number, double> ? at::kDouble : at::kLong;
  NARROWCAST_CHECK_INPUT(found->second.scalar_type() == dtype && found->second.numel() == 1, "'", name,
                         "' is no number of type ", dtype);
  return found->second.item<Number>();
}

void get(const TensorMap& tensors, const char* name, double& value) {
  value = number_of<double>(tensors, std::string("counters.") + name);
}
void get(const TensorMap& tensors, const char* name, int64_t& value) {
  value = number_of<int64_t>(tensors, std::string("counters.") + name);
}
void get(const TensorMap& tensors, const char* name, std::optional<double>& value) {
  if (tensors.count(std::string("counters.") + name) > 0) {
    value = number_of<double>(tensors, std::string("counters.") + name);
  }
}

// `field(name, member)` for each counter that all ranks agree on.
template <class SomeCounters, class Field>
void each_shared(SomeCounters& counters, const Field& field) {
  field("skipped_steps", counters.skipped_steps);
  field("seconds", counters.seconds);
  field("training_loss", counters.training_loss);
  field("validation_loss", counters.validation_loss);
  field("gradient_norm", counters.gradient_norm);
  field("window_steps", counters.window_steps);
  field("window_batches", counters.window_batches);
  field("window_seconds", counters.window_seconds);
}

}  // namespace

void save_counters(const Counters& counters, checkpoint::Content& content) {
  each_shared(counters, [&](const char* name, const auto& value) { put(content.replica, name, value); });
  content.rank[kWindowLoss] = at::full({}, counters.window_loss, at::kDouble);
}

Counters load_counters(const checkpoint::Restored& restored, int64_t world_size) {
  Counters counters;
  counters.step = restored.step;
  each_shared(counters, [&](const char* name, auto& value) { get(restored.replica, name, value); });
  for (const TensorMap& former : restored.former.states) {
    counters.window_loss += number_of<double>(former, kWindowLoss);
  }
  if (restored.former.world_size != world_size) {
    counters.window_loss *= static_cast<double>(world_size) / static_cast<double>(restored.former.world_size);
  }
  return counters;
}

}  // namespace narrowcast::training

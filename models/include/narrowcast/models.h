// Bundled models by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/model.h>

namespace NARROWCAST_EXPORT narrowcast {
namespace models {

// The names that create_model accepts, sorted.
std::vector<std::string> model_names();

// A freshly initialised model; its parameters are drawn from LibTorch's default generator. Missing options have the
// model's defaults. Throws c10::ValueError for an unknown name (the message lists the known names). For an option that
// the model does not have, or a value out of range, the c10::ValueError names the option and the value.
std::shared_ptr<Model> create_model(const std::string& name, const ModelOptions& options = {});

// The number of elements of all parameters of such a model, computed from the options only. Errors as above.
int64_t count_parameters(const std::string& name, const ModelOptions& options = {});

}  // namespace models
}  // namespace narrowcast

// Bundled models by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/model.h>

namespace NARROWCAST_EXPORT narrowcast {
namespace models {

// Names that create_model knows, sorted.
std::vector<std::string> model_names();

// A freshly initialised model (parameters drawn from LibTorch's default generator).
// Missing options take the model's defaults. Throws
// c10::ValueError for an unknown name (it lists the known ones), an option the
// model does not have, or a value out of range, naming the option and the value.
std::shared_ptr<Model> create_model(const std::string& name, const ModelOptions& options = {});

// Numbers that the parameters of such a model hold, computed from the options alone. Errors as above.
int64_t count_parameters(const std::string& name, const ModelOptions& options = {});

}  // namespace models
}  // namespace narrowcast

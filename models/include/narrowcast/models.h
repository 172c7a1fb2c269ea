// Bundled models by name, and model packages by their files.
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

// Reads a package of narrowcast_export.py (docs/reference/model-packages.md) and loads its compiled code into this
// process: load only packages that you trust. No Python is needed. The model is in training mode. Its parameters and
// buffers have the names of the Python module and the package's initial values.
//
// Batches have the shapes and dtypes of the export's example, with any batch size that the package takes. In training
// mode, forward computes loss and gradients, and the backward pass hands them out, once. In evaluation mode, forward
// and evaluate compute no gradients.
//
// Throws c10::ValueError naming the path if it cannot be read, is not a package, or cannot run here: another kind of
// processor, or a newer torch than this LibTorch. Throws CorruptInputError if it is damaged.
std::shared_ptr<Model> load_package(const std::string& path);

}  // namespace models
}  // namespace narrowcast

// Model packages of narrowcast_export.py for programs that train with DistributedDataParallel.
#pragma once

#include <memory>
#include <string>

#include <narrowcast/model.h>

namespace NARROWCAST_EXPORT narrowcast {
namespace models {

// Reads a package (docs/reference/model-packages.md) and loads its compiled code into this process: load only packages
// that you trust. No Python is needed. The model is in training mode. Its parameters and buffers have the names of the
// Python module and the package's initial values.
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

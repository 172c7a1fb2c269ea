#include <narrowcast/load_package.h>

#include "models/imported/package_model.h"

namespace narrowcast::models {

std::shared_ptr<Model> load_package(const std::string& path) {
  return std::make_shared<PackageModel>(read_package(path), path);
}

}  // namespace narrowcast::models

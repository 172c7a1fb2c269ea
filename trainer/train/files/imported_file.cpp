#include "trainer/train/files/imported_file.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "models/imported/fixed_modes.h"
#include "models/imported/package_model.h"
#include "models/imported/script_model.h"
#include "models/table/model_table.h"
#include "trainer/train/files/weight_files.h"

namespace narrowcast::files {
namespace {

void load_script_into(ImportedFile& file, const std::string& path, const std::string& loss) {
  file.script = std::make_shared<const SavedScript>(load_script(path));
  models::ScriptOptions options = {.name = path, .vocabulary = script_vocabulary(path, *file.script)};
  if (!loss.empty()) {
    options.loss = models::parse_loss(loss);
  }
  file.model = std::make_shared<models::ScriptModel>(file.script->module, options);
  if (const std::string fixed = models::describe_fixed_modes(file.script->module); !fixed.empty()) {
    file.warnings.push_back(absl::StrCat("model: ", path, " ignores train() and eval(), as traced modules do: ", fixed,
                                         "; torch.jit.script(net) creates a module that does not"));
  }
}

void load_package_into(ImportedFile& file, const std::string& path) {
  models::Package package = models::read_package(path);
  if (const std::string warning = models::version_warning(package.manifest, path); !warning.empty()) {
    file.warnings.push_back(absl::StrCat("model: ", warning));
  }
  file.model = std::make_shared<models::PackageModel>(std::move(package), path);
}

}  // namespace

ImportedFile load_imported(const std::string& path, const std::string& loss) {
  ImportedFile file = {.model = nullptr, .hash = hash_of_files({path})};
  models::is_script(path) ? load_script_into(file, path, loss) : load_package_into(file, path);
  file.model->train();
  return file;
}

}  // namespace narrowcast::files

#include "models/table/model_table.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include <narrowcast/char_gpt.h>
#include <narrowcast/gpt.h>
#include <narrowcast/mlp.h>
#include <narrowcast/models.h>
#include "models/bundled/ddp_comm_hook_task.h"

namespace narrowcast::models {
namespace {

// The row of a class of models.
template <class Class>
ModelRow row_of(DataKind data) {
  return {.name = Class::kName,
          .create = Class::create,
          .count_parameters = Class::count_parameters,
          .data = data,
          .options = Class::option_names()};
}

ModelRow gpt_row() {
  ModelRow row = row_of<Gpt>(DataKind::kText);
  row.is_gpt2 = true;
  return row;
}

// The names of the rows for which `holds` is true.
template <class Predicate>
std::vector<std::string> names_where(Predicate holds) {
  std::vector<std::string> names;
  for (const ModelRow& row : model_rows()) {
    if (holds(row)) {
      names.push_back(row.name);
    }
  }
  return names;
}

}  // namespace

const std::vector<ModelRow>& model_rows() {
  static const std::vector<ModelRow> rows = {row_of<CharGpt>(DataKind::kText), row_of<DdpCommHookTask>(DataKind::kNone),
                                             gpt_row(), row_of<Mlp>(DataKind::kImages)};
  return rows;
}

bool ModelRow::has_option(const std::string& option) const {
  return std::find(options.begin(), options.end(), option) != options.end();
}

bool ModelRow::fits(int64_t size, int64_t needed) const { return size == needed || (is_gpt2 && size > needed); }

const ModelRow& model_row(const std::string& name) {
  const std::vector<ModelRow>& rows = model_rows();
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const ModelRow& entry) { return entry.name == name; });
  TORCH_CHECK_VALUE(row != rows.end(), "model: unknown name '", name, "'; known: ", c10::Join(", ", model_names()));
  return *row;
}

bool is_script(const std::string& name) { return name.ends_with(kScriptSuffix); }

bool is_package(const std::string& name) { return name.ends_with(kPackageSuffix); }

bool is_imported(const std::string& name) { return is_script(name) || is_package(name); }

const ModelRow& any_model_row(const std::string& name) {
  static const ModelRow script = {
      .name = kScript, .create = {}, .count_parameters = {}, .data = DataKind::kGiven, .options = {"context"}};
  static const ModelRow package = {.name = kPackage, .create = {}, .count_parameters = {}, .data = DataKind::kGiven};
  return is_script(name) ? script : is_package(name) ? package : model_row(name);
}

std::vector<std::string> learning_models() {
  return names_where([](const ModelRow& row) { return row.learns(); });
}

std::vector<std::string> fixed_models() {
  return names_where([](const ModelRow& row) { return !row.learns(); });
}

}  // namespace narrowcast::models

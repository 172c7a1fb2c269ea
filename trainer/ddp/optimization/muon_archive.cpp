// The options and the state of Muon in archives of torch::save.
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/serialize/archive.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/muon.h>
#include "ops/common/enumerator_names.h"

namespace narrowcast::optim {
namespace {

using torch::optim::OptimizerParamGroup;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr EnumeratorNames<AdjustLr, 2> kAdjustLrNames{
    "adjust_lr_fn", "AdjustLr", {{{AdjustLr::kOriginal, "original"}, {AdjustLr::kMatchRmsAdamW, "match_rms_adamw"}}}};

constexpr const char* kGroups = "groups";
constexpr const char* kKind = "kind";
constexpr const char* kOptions = "options";
constexpr const char* kParameters = "parameters";
constexpr const char* kCoefficients[] = {"ns_a", "ns_b", "ns_c"};

c10::IValue read(InputArchive& archive, const std::string& name) {
  c10::IValue value;
  archive.read(name, value);
  return value;
}

// The names of nested archives. Groups and parameters are numbered.
std::string group_name(size_t index) { return c10::str("group", index); }
std::string state_name(size_t index) { return c10::str("state", index); }

const char* kind_of(const OptimizerParamGroup& group) {
  return dynamic_cast<const MuonOptions*>(&group.options()) != nullptr ? "Muon" : "AdamW";
}

// A tensor of a saved state, on the parameter's device. Kernels take all of them to be as large as the parameter.
at::Tensor fitted(const at::Tensor& saved, const at::Tensor& parameter, const std::string& name) {
  TORCH_CHECK_VALUE(
      saved.defined() && saved.sizes() == parameter.sizes() && saved.scalar_type() == parameter.scalar_type(),
      "Muon: the saved state of ", name, " is ",
      saved.defined() ? c10::str(saved.scalar_type(), saved.sizes()) : "empty", ", but the parameter is ",
      parameter.scalar_type(), parameter.sizes());
  return saved.to(parameter.device());
}

using ParamState = std::unique_ptr<torch::optim::OptimizerParamState>;

ParamState read_muon_state(InputArchive& archive, const at::Tensor& parameter, const std::string& name) {
  auto state = std::make_unique<MuonParamState>();
  state->serialize(archive);
  state->momentum_buffer(fitted(state->momentum_buffer(), parameter, name));
  return state;
}

ParamState read_adamw_state(InputArchive& archive, const at::Tensor& parameter, const std::string& name) {
  auto state = std::make_unique<torch::optim::AdamWParamState>();
  state->serialize(archive);
  state->exp_avg(fitted(state->exp_avg(), parameter, name));
  state->exp_avg_sq(fitted(state->exp_avg_sq(), parameter, name));
  return state;
}

}  // namespace

AdjustLr parse_adjust_lr(const std::string& name) { return kAdjustLrNames.parse_known(name); }

std::string to_string(AdjustLr adjust_lr) { return std::string(kAdjustLrNames.name_of(adjust_lr)); }

MuonOptions::MuonOptions(double lr) : lr_(lr) {}

double MuonOptions::get_lr() const { return lr(); }

void MuonOptions::set_lr(double lr) { this->lr(lr); }

void MuonOptions::serialize(OutputArchive& archive) const {
  archive.write("lr", c10::IValue(lr()));
  archive.write("weight_decay", c10::IValue(weight_decay()));
  archive.write("momentum", c10::IValue(momentum()));
  archive.write("nesterov", c10::IValue(nesterov()));
  for (size_t i = 0; i < ns_coefficients().size(); ++i) {
    archive.write(kCoefficients[i], c10::IValue(ns_coefficients()[i]));
  }
  archive.write("ns_steps", c10::IValue(ns_steps()));
  archive.write("eps", c10::IValue(eps()));
  archive.write("adjust_lr_fn", c10::IValue(to_string(adjust_lr_fn())));
  if (ns_dtype().has_value()) {
    archive.write("ns_dtype", c10::IValue(static_cast<int64_t>(*ns_dtype())));
  }
}

void MuonOptions::serialize(InputArchive& archive) {
  lr(read(archive, "lr").toDouble());
  weight_decay(read(archive, "weight_decay").toDouble());
  momentum(read(archive, "momentum").toDouble());
  nesterov(read(archive, "nesterov").toBool());
  for (size_t i = 0; i < ns_coefficients().size(); ++i) {
    ns_coefficients()[i] = read(archive, kCoefficients[i]).toDouble();
  }
  ns_steps(read(archive, "ns_steps").toInt());
  eps(read(archive, "eps").toDouble());
  adjust_lr_fn(parse_adjust_lr(read(archive, "adjust_lr_fn").toStringRef()));
  // Ranks may have agreed on a dtype that the saved optimizer did not know.
  if (c10::IValue dtype; archive.try_read("ns_dtype", dtype)) ns_dtype(dtype.toScalarType());
}

void MuonParamState::serialize(OutputArchive& archive) const { archive.write("momentum_buffer", momentum_buffer()); }

void MuonParamState::serialize(InputArchive& archive) { archive.read("momentum_buffer", momentum_buffer()); }

void Muon::save(OutputArchive& archive) const {
  archive.write(kGroups, c10::IValue(static_cast<int64_t>(param_groups().size())));
  for (size_t i = 0; i < param_groups().size(); ++i) {
    const OptimizerParamGroup& group = param_groups()[i];
    OutputArchive saved(archive.compilation_unit());
    saved.write(kKind, c10::IValue(std::string(kind_of(group))));
    saved.write(kParameters, c10::IValue(static_cast<int64_t>(group.params().size())));
    OutputArchive options(archive.compilation_unit());
    group.options().serialize(options);
    saved.write(kOptions, options);
    for (size_t j = 0; j < group.params().size(); ++j) {
      const auto found = state().find(group.params()[j].unsafeGetTensorImpl());
      if (found != state().end()) {
        OutputArchive of_parameter(archive.compilation_unit());
        found->second->serialize(of_parameter);
        saved.write(state_name(j), of_parameter);
      }
    }
    archive.write(group_name(i), saved);
  }
}

void Muon::load(InputArchive& archive) {
  const int64_t groups = read(archive, kGroups).toInt();
  TORCH_CHECK_VALUE(groups == static_cast<int64_t>(param_groups().size()), "Muon: ", groups,
                    " groups were saved, but it has ", param_groups().size());
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> all_options;
  std::vector<std::pair<void*, ParamState>> all_states;
  for (size_t i = 0; i < param_groups().size(); ++i) {
    const OptimizerParamGroup& group = param_groups()[i];
    InputArchive saved;
    archive.read(group_name(i), saved);
    const std::string kind = read(saved, kKind).toStringRef();
    const int64_t parameters = read(saved, kParameters).toInt();
    TORCH_CHECK_VALUE(kind == kind_of(group) && parameters == static_cast<int64_t>(group.params().size()),
                      "Muon: group ", i, " was saved with ", parameters, " parameters of ", kind, ", but it has ",
                      group.params().size(), " of ", kind_of(group));
    InputArchive options;
    saved.read(kOptions, options);
    all_options.push_back(group.options().clone());
    all_options.back()->serialize(options);
    for (size_t j = 0; j < group.params().size(); ++j) {
      InputArchive of_parameter;
      if (!saved.try_read(state_name(j), of_parameter)) {
        continue;
      }
      const at::Tensor& parameter = group.params()[j];
      const std::string name = c10::str("parameter ", j, " of group ", i);
      all_states.emplace_back(parameter.unsafeGetTensorImpl(), kind == "Muon"
                                                                   ? read_muon_state(of_parameter, parameter, name)
                                                                   : read_adamw_state(of_parameter, parameter, name));
    }
  }
  // Nothing has changed so far.
  for (size_t i = 0; i < all_options.size(); ++i) param_groups()[i].set_options(std::move(all_options[i]));
  state().clear();
  for (auto& [parameter, of_parameter] : all_states) state()[parameter] = std::move(of_parameter);
}

}  // namespace narrowcast::optim

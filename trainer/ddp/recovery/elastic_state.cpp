#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/serialize/archive.h>

#include <sstream>
#include <string>
#include <utility>

#include <narrowcast/elastic_group.h>
#include "ops/common/text.h"
#include "trainer/base/files/safetensors_header.h"

namespace narrowcast {
namespace {

constexpr const char* kArchive = "archive";

void check_name(const std::string& name) {
  TORCH_CHECK_VALUE(!name.empty() && !decode_utf8(name).first_bad_byte, "state: the name ", in_quotes(name),
                    " must not be empty, and must be UTF-8");
}

void check_can_be_sent(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "state: ", in_quotes(name), " is not a defined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && files::dtype_name(tensor.scalar_type()).has_value(),
                    "state: ", in_quotes(name), " is ", tensor.scalar_type(), " of layout ", tensor.layout(),
                    ", which cannot be sent");
}

// LibTorch's archive of an optimizer as bytes.
at::Tensor bytes_of(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  const std::string bytes = std::move(out).str();
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte).clone();
}

// Loading replaces the state of parameters that have one in the archive. Others may have one here only.
void load_bytes(torch::optim::Optimizer& optimizer, const at::Tensor& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel()));
  optimizer.state().clear();
  optimizer.load(archive);
}

}  // namespace

void ElasticState::check_is_free(const std::string& name) const {
  check_name(name);
  TORCH_CHECK_VALUE(!tensors_.contains(name) && !saved_.contains(name), "state: there is already a part ",
                    in_quotes(name));
}

void ElasticState::add(const std::string& name, const at::Tensor& tensor) {
  check_is_free(name);
  check_can_be_sent(name, tensor);
  tensors_[name] = {.tensor = tensor, .dtype = tensor.scalar_type(), .sizes = tensor.sizes().vec()};
}

void ElasticState::add(const std::string& name, torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) add(c10::str(name, ".", item.key()), item.value());
  for (const auto& item : module.named_buffers()) add(c10::str(name, ".", item.key()), item.value());
}

void ElasticState::add(const std::string& name, torch::optim::Optimizer& optimizer) {
  add_saved(name, {.save =
                       [&optimizer] {
                         return Tensors{{kArchive, bytes_of(optimizer)}};
                       },
                   .load = [&optimizer](const Tensors& tensors) { load_bytes(optimizer, tensors.at(kArchive)); },
                   .is_equal_on_all_ranks = false});
}

void ElasticState::add(const std::string& name, std::function<Tensors()> save,
                       std::function<void(const Tensors&)> load) {
  TORCH_CHECK_VALUE(save && load, "state: ", in_quotes(name), " needs both functions, save and load");
  add_saved(name, {.save = std::move(save), .load = std::move(load)});
}

void ElasticState::add_saved(const std::string& name, Saved part) {
  check_is_free(name);
  saved_[name] = std::move(part);
}

}  // namespace narrowcast

#include "trainer/ddp/sharding/sharded_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "ops/cpu/optimizer/gradient_norm.h"

namespace narrowcast::sharding {
namespace {

constexpr const char* kParameters = "exchanging the shards of the parameters";
constexpr const char* kGradients = "sending averages to the copies of shards";
constexpr const char* kNorm = "adding up the norm of the gradients' shards";
constexpr const char* kDifference = "comparing masters and parameters";

// NaN if one of them is NaN.
double larger(double a, double b) { return b > a || std::isnan(b) ? b : a; }

}  // namespace

ShardedParts::ShardedParts(torch::optim::Optimizer& inner, ShardRequest request, ShardPlace place)
    : inner_(inner),
      parameters_(std::move(request.parameters)),
      groups_(std::move(request.groups)),
      costs_(std::move(request.costs)),
      indices_(indices_of(parameters_)),
      place_(std::move(place)),
      follows_buckets_(place_.reducer != nullptr && place_.cuts_parameters) {
  if (follows_buckets_) {
    buckets_ = place_.reducer->buckets();
  }
  use(cut(place_.exchange->count()));
  if (place_.shared != nullptr) {
    shared_ = std::make_unique<SharedParameters>(place_.group, place_.shared->nodes(), parameters_, own_shard());
  }
  make_tensors();
}

// The hook averages all elements again.
ShardedParts::~ShardedParts() {
  if (place_.reducer != nullptr && place_.cuts_parameters) {
    place_.reducer->average_shards(std::nullopt);
  }
}

std::vector<Shard> ShardedParts::cut(int64_t count) const {
  if (follows_buckets_) {
    return cut_buckets(buckets_, indices_, place_.layout);
  }
  return sharding::cut(parameters_, count, ShardOptions().whole_parameters(!place_.cuts_parameters), costs_);
}

// Other copies of the shards may have larger ones.
void ShardedParts::use(std::vector<Shard> shards) {
  shards_ = std::move(shards);
  std::vector<int64_t> numels;
  for (const Shard& shard : shards_) {
    numels.push_back(elements_of(shard));
  }
  int64_t largest = std::ranges::max(numels);
  for (const int64_t count : place_.exchange->counts()) {
    for (const Shard& shard : count == place_.exchange->count() ? std::vector<Shard>() : cut(count)) {
      largest = std::max(largest, elements_of(shard));
    }
  }
  if (has_copies()) {
    place_.copies->set_sizes(numels);
  }
  place_.exchange->set_sizes(std::move(numels), largest);
  held_ = held_of(shards_);
  find_first_places();
}

void ShardedParts::find_first_places() {
  if (place_.over_all == nullptr) {
    return;
  }
  first_places_.assign(parameters_.size(), std::numeric_limits<int64_t>::max());
  for (const Shard& shard : shards_) {
    int64_t place = 0;
    for (const Piece& piece : shard) {
      first_places_[piece.parameter] = std::min(first_places_[piece.parameter], place);
      place += piece.numel;
    }
  }
}

Shard ShardedParts::held_of(const std::vector<Shard>& shards) const {
  Shard held = shards[place_.exchange->own()];
  for (const int64_t owner : has_copies() ? place_.copies->owners() : std::vector<int64_t>()) {
    held.insert(held.end(), shards[owner].begin(), shards[owner].end());
  }
  return held;
}

// `masters`: of all pieces; by default copies of the parameters.
void ShardedParts::make_tensors(std::vector<at::Tensor> masters) {
  tensors_ = std::move(masters);
  for (size_t i = tensors_.size(); i < held_.size(); ++i) {
    const at::Tensor& parameter = parameters_[held_[i].parameter];
    const at::Tensor part = place_.cuts_parameters ? memory_of(parameter, held_[i]) : parameter;
    tensors_.push_back(has_masters() ? part.detach().clone() : part);
  }
  replace_parameters();
}

// Masters begin with the values that the parameters have before the first step.
void ShardedParts::take_masters() {
  for (size_t i = 0; has_masters() && i < tensors_.size(); ++i) {
    memory_of_whole(tensors_[i]).copy_(memory_of(parameters_[held_[i].parameter], held_[i]));
  }
}

void ShardedParts::take_parameters() {
  finish_step();
  if (!versions_.empty()) {
    take_masters();
    versions_.clear();
  }
}

// The next difference would undo what somebody else has done to a parameter.
void ShardedParts::check_parameters() const {
  for (size_t i = 0; i < versions_.size(); ++i) {
    TORCH_CHECK_VALUE(parameters_[i]._version() == versions_[i], "parameter ", i, " ", parameters_[i].sizes(),
                      " was changed since the last step, which its master does not know: call take_parameters() on all "
                      "ranks after such a change");
  }
}

// Replaces the parameters in the optimizer's groups by this rank's pieces of them.
void ShardedParts::replace_parameters() {
  for (auto& group : inner_.param_groups()) {
    group.params().clear();
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    inner_.param_groups()[groups_[held_[i].parameter]].params().push_back(tensors_[i]);
  }
}

// The buckets of the last averaged pass may have other parameters than those before. The hook has averaged the shards
// of these buckets, even if a later forward pass has rebuilt them. Without a hook all elements are averaged.
void ShardedParts::follow_buckets() {
  if (!follows_buckets_) {
    return;
  }
  std::vector<std::vector<at::Tensor>> buckets = place_.reducer->buckets();
  if (!are_same(buckets, buckets_)) {
    buckets_ = std::move(buckets);
    move_to(cut(place_.exchange->count()));
  }
}

void ShardedParts::finish_step() {
  if (place_.over_all != nullptr) {
    place_.over_all->finish();
  }
}

// Parameters that are not sharded are never exchanged.
void ShardedParts::wait_for(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    const auto index = indices_.find(parameter.unsafeGetTensorImpl());
    if (place_.over_all != nullptr && index != indices_.end()) {
      place_.over_all->wait_from(first_places_[index->second]);
    }
  }
}

Elements ShardedParts::gradients_of(const Shard& shard) const {
  Elements elements;
  for (const Piece& piece : shard) {
    const at::Tensor gradient = gradient_of(piece);
    gradient.defined() ? elements.add(gradient) : elements.add_gap(piece.numel);
  }
  return elements;
}

// A copy's averages lie where this rank's own gradients were, which nobody needs any more.
bool ShardedParts::share_gradients() {
  const at::NoGradGuard no_grad;
  finish_step();
  follow_buckets();
  Elements own;
  std::vector<Elements> copies;
  std::exception_ptr failure;
  try {
    own = gradients_of(own_shard());
    for (const int64_t owner : place_.copies->owners()) copies.push_back(gradients_of(shards_[owner]));
  } catch (...) {
    failure = std::current_exception();
  }
  const int64_t sent_before = place_.copies->bytes_sent();
  failure_ = place_.copies->send(kGradients, place_.differences.value_or(WireFormat::kFp32), own, copies, failure);
  payload_bytes_sent_ += place_.copies->bytes_sent() - sent_before;
  has_shared_gradients_ = true;
  return failure_ == nullptr;
}

// A rank that fails alone takes part in the exchange, so that the others fail instead of waiting.
void ShardedParts::start_step() {
  const at::NoGradGuard no_grad;
  finish_step();
  follow_buckets();
  if (!std::exchange(has_state_, true)) {
    take_masters();
  }
  if (shared_ != nullptr) {
    shared_->wait_for_readers(*place_.shared);
  }
  if (has_copies() && !has_shared_gradients_) {
    share_gradients();
  }
  has_shared_gradients_ = false;
  std::exception_ptr failure = std::exchange(failure_, nullptr);
  try {
    if (!failure) step_pieces();
  } catch (...) {
    failure = std::current_exception();
  }
  if (shared_ != nullptr) {
    SharedParameters::wait_for_writers(*place_.shared, failure);
  } else {
    start_exchange(failure);
  }
  versions_.clear();
  for (const at::Tensor& parameter : parameters_) {
    parameter.unsafeGetTensorImpl()->bump_version();  // As an operator that changes it.
    if (has_masters()) versions_.push_back(static_cast<uint32_t>(parameter._version()));
  }
}

void ShardedParts::start_exchange(const std::exception_ptr& failure) {
  std::vector<Elements> elements;
  for (const Shard& shard : shards_) {
    elements.push_back(elements_of_parameters(shard));
  }
  const int64_t sent_before = place_.exchange->bytes_sent();
  if (has_masters()) {
    place_.over_all->start_differences(kParameters, *place_.differences, Elements(own_masters()), elements, failure);
  } else if (place_.over_all != nullptr) {
    place_.over_all->start(kParameters, elements, failure);
  } else {
    place_.exchange->run(kParameters, elements, failure);
  }
  payload_bytes_sent_ += place_.exchange->bytes_sent() - sent_before;
}

// The pieces do not keep their gradients, which are views of others: LibTorch's zero_grad refuses views.
void ShardedParts::step_pieces() {
  check_parameters();
  pass_gradients();
  const auto forget = c10::make_scope_exit([this] {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].is_same(parameters_[held_[i].parameter])) {
        tensors_[i].mutable_grad() = at::Tensor();
      }
    }
  });
  inner_.step();
}

void ShardedParts::pass_gradients() {
  for (size_t i = 0; i < held_.size(); ++i) {
    const at::Tensor gradient = gradient_of(held_[i]);
    if (!place_.cuts_parameters) {
      tensors_[i].mutable_grad() = parameters_[held_[i].parameter].grad();
    } else {
      tensors_[i].mutable_grad() = gradient;
    }
  }
}

// The memory of the piece's gradient: [numel], or undefined. The parameter gets a gradient with its own order in
// memory.
at::Tensor ShardedParts::gradient_of(const Piece& piece) const {
  at::Tensor parameter = parameters_[piece.parameter];
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) {
    return {};
  }
  TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, "a gradient of layout ", gradient.layout(),
                    " cannot be sharded");
  if (gradient.strides() != parameter.strides()) {
    parameter.mutable_grad() = at::empty_like(parameter).copy_(gradient);
  }
  return memory_of(parameter.grad(), piece);
}

std::vector<at::Tensor> ShardedParts::own_gradients() {
  finish_step();
  follow_buckets();
  std::vector<at::Tensor> gradients;
  for (const Piece& piece : own_shard()) {
    if (const at::Tensor gradient = gradient_of(piece); gradient.defined()) {
      gradients.push_back(gradient);
    }
  }
  return gradients;
}

// Numbers of all ranks with a shard; those of other ranks are empty.
std::vector<std::vector<int64_t>> ShardedParts::gather_numbers(const std::string& name,
                                                               const std::vector<int64_t>& own) {
  std::vector<int64_t> counts;
  for (const Shard& shard : shards_) {
    counts.push_back(shard.empty() ? 0 : std::ssize(own));
  }
  return place_.exchange->all_gather(name, counts, own_shard().empty() ? std::vector<int64_t>() : own);
}

double ShardedParts::gradient_norm() {
  const std::vector<at::Tensor> gradients = own_gradients();
  std::vector<cpu::GradientPiece> pieces;
  for (const at::Tensor& gradient : gradients) {
    pieces.push_back({gradient.const_data_ptr<float>(), gradient.numel()});
  }
  float greatest = 0;
  const auto own_greatest = std::bit_cast<int32_t>(cpu::greatest_magnitude(pieces));
  for (const std::vector<int64_t>& of_rank : gather_numbers(kNorm, {own_greatest})) {
    for (const int64_t bits : of_rank) {
      greatest = cpu::larger_magnitude(greatest, std::bit_cast<float>(static_cast<int32_t>(bits)));
    }
  }
  const cpu::SquareSum own_sum = cpu::sum_of_squares(pieces, greatest);
  cpu::SquareSum sum;
  for (const std::vector<int64_t>& of_rank :
       gather_numbers(kNorm, {std::bit_cast<int64_t>(own_sum.low), std::bit_cast<int64_t>(own_sum.high)})) {
    if (!of_rank.empty()) {
      sum.add(cpu::SquareSum{std::bit_cast<uint64_t>(of_rank[0]), std::bit_cast<uint64_t>(of_rank[1])});
    }
  }
  return cpu::norm_of_sum(sum, greatest);
}

double ShardedParts::largest_difference() {
  double largest = 0;
  if (!has_masters()) {
    return largest;
  }
  const at::NoGradGuard no_grad;
  finish_step();
  const std::vector<at::Tensor> masters = own_masters();
  for (size_t i = 0; i < masters.size(); ++i) {
    const Piece& piece = own_shard()[i];
    const at::Tensor difference = masters[i] - memory_of(parameters_[piece.parameter], piece);
    largest = difference.numel() == 0 ? largest : larger(largest, difference.abs().max().item<double>());
  }
  for (const std::vector<int64_t>& of_rank : gather_numbers(kDifference, {std::bit_cast<int64_t>(largest)})) {
    for (const int64_t bits : of_rank) {
      largest = larger(largest, std::bit_cast<double>(bits));
    }
  }
  return largest;
}

Elements ShardedParts::elements_of_parameters(const Shard& shard) const {
  Elements elements;
  for (const Piece& piece : shard) {
    elements.add(memory_of(parameters_[piece.parameter], piece));
  }
  return elements;
}

// The memory of the own shard's pieces: [numel] each.
std::vector<at::Tensor> ShardedParts::own_masters() const {
  std::vector<at::Tensor> memory;
  for (int64_t i = 0; i < own_pieces(); ++i) {
    memory.push_back(memory_of_whole(tensors_[i]));
  }
  return memory;
}

void ShardedParts::zero_grad() {
  for (at::Tensor parameter : parameters_) {
    parameter.mutable_grad() = at::Tensor();
  }
}

int64_t ShardedParts::elements() const {
  int64_t elements = 0;
  for (const Shard& shard : shards_) {
    elements += elements_of(shard);
  }
  return elements;
}

}  // namespace narrowcast::sharding

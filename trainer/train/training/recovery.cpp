#include "trainer/train/training/recovery.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/errors.h>
#include <narrowcast/network_errors.h>
#include "trainer/base/files/json.h"
#include "trainer/train/files/safetensors.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {
namespace {

using checkpoint::Content;
using checkpoint::TensorMap;
using nlohmann::json;

constexpr const char* kStep = "recovery of lost ranks";
constexpr int kTag = 0x7265;  // of the messages with tensors
constexpr int64_t kNothing = -1;
constexpr const char* kReplica = "replica.";  // before the names of Content::replica in an inventory
constexpr const char* kRank = "rank.";        // and of Content::rank

// Numbers the points in their order.
int64_t point_of(const std::optional<SurvivingState>& state) {
  return state.has_value() ? 2 * state->content.step + (state->is_reported ? 1 : 0) : kNothing;
}

std::vector<int64_t> points_of_ranks(const ProcessGroupPtr& group, const std::optional<SurvivingState>& own) {
  std::vector<int64_t> points;
  for (const std::string& text : all_gather_text(group, std::to_string(point_of(own)))) {
    int64_t point = kNothing;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), point);
    NARROWCAST_CHECK_INPUT(end.ec == std::errc() && point >= kNothing, "rank ", points.size(), " announced '", text,
                           "' as the point of its training");
    points.push_back(point);
  }
  return points;
}

template <class Matches>
std::vector<int64_t> ranks_that(const std::vector<int64_t>& points, const Matches& matches) {
  std::vector<int64_t> ranks;
  for (size_t rank = 0; rank < points.size(); ++rank) {
    if (matches(points[rank])) {
      ranks.push_back(static_cast<int64_t>(rank));
    }
  }
  return ranks;
}

// Tensors of the sources, by name, and from which source each comes.
struct Inventory {
  struct Part {
    std::string name;
    files::TensorEntry entry;
    size_t source = 0;  // index among the sources
  };
  std::vector<Part> parts;
  int64_t step = 0;
  bool is_reported = true;
  int64_t world_size = 1;
  json training;
};

TensorMap tensors_of(const SurvivingState& state) {
  TensorMap tensors;
  for (const auto& [name, tensor] : state.content.replica) tensors[kReplica + name] = tensor;
  for (const auto& [name, tensor] : state.content.rank) tensors[kRank + name] = tensor;
  return tensors;
}

// The inventory as the first source announces it: the bytes of all tensors, a space, and the header of a safetensors
// file.
std::string to_text(const SurvivingState& state) {
  files::SafetensorsHeader header;
  int64_t end = 0;
  for (const auto& [name, tensor] : tensors_of(state)) {
    const int64_t begin = std::exchange(end, end + static_cast<int64_t>(tensor.nbytes()));
    header.tensors.push_back({name, {tensor.scalar_type(), tensor.sizes().vec(), begin, end}});
  }
  header.metadata = {
      {"state",
       json({{"step", state.content.step}, {"is_reported", state.is_reported}, {"world_size", state.world_size}, {"training", state.content.training}})
           .dump()}};
  return c10::str(end, " ", files::format_safetensors_header(header, kStep));
}

// Counters of times, and all of Content::rank, differ between ranks.
bool is_on_all_sources(const std::string& name) {
  return name.starts_with(kReplica) && !is_counter(name.substr(std::string_view(kReplica).size()));
}

// Throws CorruptInputError for a text that to_text does not write.
Inventory read_inventory(const std::string& text, size_t sources) {
  int64_t bytes = -1;
  const char* const end = text.data() + text.size();
  const auto number = std::from_chars(text.data(), end, bytes);
  NARROWCAST_CHECK_INPUT(number.ec == std::errc() && bytes >= 0 && number.ptr != end && *number.ptr == ' ', kStep,
                         ": the first source's inventory does not begin with a number of bytes");
  const files::SafetensorsHeader header =
      files::parse_safetensors_header(std::string_view(number.ptr + 1, end), bytes, kStep);
  const auto metadata = header.metadata.find("state");
  NARROWCAST_CHECK_INPUT(metadata != header.metadata.end(), kStep, ": the first source's inventory has no 'state'");
  Inventory inventory;
  try {
    const json state = files::parse_json(metadata->second, kStep);
    inventory.step = state.at("step").get<int64_t>();
    inventory.is_reported = state.at("is_reported").get<bool>();
    inventory.world_size = state.at("world_size").get<int64_t>();
    inventory.training = state.at("training");
  } catch (const json::exception& error) {
    NARROWCAST_CHECK_INPUT(false, kStep, ": the first source's 'state': ", files::problem_with(error));
  }
  std::vector<int64_t> load(sources);  // bytes that each source sends
  for (const auto& [name, entry] : header.tensors) {
    const size_t source =
        is_on_all_sources(name) ? static_cast<size_t>(std::ranges::min_element(load) - load.begin()) : 0;
    load[source] += entry.end - entry.begin;
    inventory.parts.push_back({name, entry, source});
  }
  return inventory;
}

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.cpu().contiguous().reshape({-1}).view(at::kByte); }

int64_t bytes_from(const Inventory& inventory, size_t source) {
  int64_t bytes = 0;
  for (const Inventory::Part& part : inventory.parts) {
    bytes += part.source == source ? part.entry.end - part.entry.begin : 0;
  }
  return bytes;
}

// Builds the message of this source to each rank that needs it. The first source's inventory decides its content.
at::Tensor message_of(const Inventory& inventory, size_t source, const SurvivingState& state) {
  const TensorMap tensors = tensors_of(state);
  std::vector<at::Tensor> pieces = {at::empty({0}, at::kByte)};
  for (const Inventory::Part& part : inventory.parts) {
    if (part.source != source) {
      continue;
    }
    const auto found = tensors.find(part.name);
    NARROWCAST_CHECK_INPUT(found != tensors.end() && found->second.scalar_type() == part.entry.dtype &&
                               found->second.sizes() == part.entry.shape,
                           kStep, ": the first source announced '", part.name, "', of which this rank has no equal");
    pieces.push_back(bytes_of(found->second));
  }
  return at::cat(pieces);
}

// The tensors of a message, by name.
void read_message(const Inventory& inventory, size_t source, const at::Tensor& message, TensorMap& tensors) {
  int64_t begin = 0;
  for (const Inventory::Part& part : inventory.parts) {
    if (part.source == source) {
      const int64_t bytes = part.entry.end - part.entry.begin;
      // A copy, because a tensor must begin at a multiple of its elements' size.
      tensors[part.name] = message.narrow(0, begin, bytes).clone().view(part.entry.dtype).view(part.entry.shape);
      begin += bytes;
    }
  }
}

// Moves the tensors from the sources to the ranks that need them. Returns them on these, else an empty map.
TensorMap move_tensors(const ProcessGroupPtr& group, const Inventory& inventory, const std::vector<int64_t>& sources,
                       const std::vector<int64_t>& needy, const std::optional<SurvivingState>& own) {
  return with_network_errors(group->getRank(), kStep, [&] {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::vector<std::vector<at::Tensor>> messages;  // by source; on a source only its own
    TensorMap tensors;
    for (size_t source = 0; source < sources.size(); ++source) {
      std::vector<at::Tensor> message;
      const int64_t bytes = bytes_from(inventory, source);
      if (bytes > 0 && sources[source] == group->getRank()) {
        message = {message_of(inventory, source, *own)};
        for (const int64_t rank : needy) {
          works.push_back(group->send(message, static_cast<int>(rank), kTag));
        }
      } else if (bytes > 0 && std::ranges::binary_search(needy, group->getRank())) {
        message = {at::empty({bytes}, at::kByte)};
        works.push_back(group->recv(message, static_cast<int>(sources[source]), kTag));
      }
      messages.push_back(std::move(message));
    }
    for (const auto& work : works) {
      work->wait();
    }
    if (std::ranges::binary_search(needy, group->getRank())) {
      for (size_t source = 0; source < sources.size(); ++source) {
        if (!messages[source].empty()) read_message(inventory, source, messages[source][0], tensors);
      }
    }
    return tensors;
  });
}

}  // namespace

std::optional<RecoveredState> share_states(const ProcessGroupPtr& group, std::optional<SurvivingState> own) {
  const std::vector<int64_t> points = points_of_ranks(group, own);
  const int64_t furthest = *std::ranges::max_element(points);
  if (furthest == kNothing) {
    return std::nullopt;
  }
  const std::vector<int64_t> sources = ranks_that(points, [&](int64_t point) { return point == furthest; });
  const std::vector<int64_t> needy = ranks_that(points, [&](int64_t point) { return point != furthest; });
  const bool is_first = group->getRank() == sources[0];
  const std::string text = all_gather_text(group, is_first ? to_text(*own) : "").at(static_cast<size_t>(sources[0]));
  const Inventory inventory = read_inventory(text, sources.size());
  const TensorMap tensors = move_tensors(group, inventory, sources, needy, own);
  RecoveredState recovered = {
      .restored = {.step = inventory.step,
                   .training = inventory.training,
                   .replica = hooks::part_of(tensors, kReplica),
                   .former = {.world_size = inventory.world_size, .states = {}, .first = hooks::part_of(tensors, kRank)},
                   .path = c10::str("the memory of rank ", sources[0])},
      .is_reported = inventory.is_reported,
      .lost_ranks = ranks_that(points, [](int64_t point) { return point == kNothing; }),
      .former_ranks = inventory.world_size};
  if (point_of(own) == furthest) {
    recovered.restored.replica = std::move(own->content.replica);
    recovered.restored.former.states = {std::move(own->content.rank)};
  }
  if (inventory.world_size != group->getSize()) {
    const int64_t staying = group->getSize() - std::ssize(recovered.lost_ranks);
    for (TensorMap& state : recovered.restored.former.states) {
      scale_window_loss(state, static_cast<double>(inventory.world_size) / static_cast<double>(staying));
    }
  }
  return recovered;
}

}  // namespace narrowcast::training

#include "trainer/ddp/recovery/shared_state.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/errors.h>
#include <narrowcast/network_errors.h>
#include "ops/comm/groups/group.h"
#include "ops/common/text.h"
#include "trainer/base/files/safetensors_header.h"
#include "trainer/ddp/recovery/held_states.h"

namespace narrowcast::recovery {
namespace {

constexpr int kTag = 0x7265;  // of the messages with tensors
constexpr int64_t kNothing = -1;
constexpr int64_t kLongestInventory = int64_t{1} << 30;  // bytes

std::string text_of(const std::vector<RankState>& own) {
  nlohmann::json text = {{"why_unusable", ""}, {"states", nlohmann::json::array()}};
  for (const RankState& state : own) {
    if (state.why_unusable.empty()) {
      text["states"].push_back({state.point, pieces::to_json(state.held)});
    } else {
      text["why_unusable"] = state.why_unusable;
    }
  }
  return text.dump();
}

std::vector<HeldStates> held_states_of_ranks(const ProcessGroupPtr& group, const std::vector<RankState>& own) {
  std::vector<HeldStates> all;
  for (const std::string& text : all_gather_text(group, text_of(own))) {
    all.push_back(parse_held_states(text, std::ssize(all)));
  }
  return all;
}

template <class Matches>
std::vector<int64_t> ranks_that(const std::vector<HeldStates>& ranks, const Matches& matches) {
  std::vector<int64_t> matching;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (matches(ranks[rank])) {
      matching.push_back(static_cast<int64_t>(rank));
    }
  }
  return matching;
}

// The elements that no rank at that point holds.
std::optional<pieces::Range> gap_at(const std::vector<HeldStates>& ranks, int64_t point) {
  std::vector<const pieces::Holding*> holdings;
  for (const HeldStates& states : ranks) {
    if (states.has(point)) holdings.push_back(&states.held.at(point));
  }
  return pieces::first_gap(holdings);
}

// The furthest point at which the ranks hold everything, else kNothing and why.
int64_t common_point(const std::vector<HeldStates>& ranks, std::string& why_nothing) {
  std::set<int64_t, std::greater<>> points;
  for (const HeldStates& states : ranks) {
    for (const auto& [point, held] : states.held) points.insert(point);
  }
  for (const int64_t point : points) {
    const std::optional<pieces::Range> gap = gap_at(ranks, point);
    if (!gap) {
      return point;
    }
    if (why_nothing.empty()) {
      why_nothing = c10::str("no rank that is left holds the optimizer's state of ", printable(pieces::describe(*gap)));
    }
  }
  for (const HeldStates& states : ranks) {
    if (why_nothing.empty()) why_nothing = printable(states.why_unusable);
  }
  return kNothing;
}

TensorMap tensors_of(const RankState& state) {
  TensorMap tensors;
  for (const auto& [name, tensor] : state.common) tensors[kCommon + name] = tensor;
  for (const auto& [name, tensor] : state.own) tensors[kOwn + name] = tensor;
  return tensors;
}

// The inventory as the first source sends it: the bytes of all tensors, a space, and the header of a safetensors
// file.
std::string to_text(const RankState& state) {
  files::SafetensorsHeader header;
  int64_t end = 0;
  for (const auto& [name, tensor] : tensors_of(state)) {
    TORCH_CHECK_VALUE(files::dtype_name(tensor.scalar_type()).has_value(), kStep, ": tensor ", in_quotes(name),
                      " has the dtype ", tensor.scalar_type(), ", which cannot be sent");
    const int64_t begin = std::exchange(end, end + static_cast<int64_t>(tensor.nbytes()));
    header.tensors.push_back({name, {tensor.scalar_type(), tensor.sizes().vec(), begin, end}});
  }
  header.metadata = {{kValues, state.values}};
  return c10::str(end, " ", files::format_safetensors_header(header, kStep));
}

// Broadcasts a tensor of one rank. Returns it on the CPU.
at::Tensor broadcast_from(const ProcessGroupPtr& group, int64_t source, const at::Tensor& tensor) {
  return with_network_errors(group->getRank(), kStep, [&] {
    std::vector<at::Tensor> tensors = {tensor.to(collectives::any_device(group))};
    c10d::BroadcastOptions options;
    options.rootRank = source;
    group->broadcast(tensors, options)->wait();
    return tensors[0].cpu();
  });
}

// A text of one rank, on all ranks. Others pass an empty one.
std::string text_from(const ProcessGroupPtr& group, int64_t source, const std::string& text) {
  const int64_t bytes =
      broadcast_from(group, source, at::full({1}, static_cast<int64_t>(text.size()), at::kLong)).item<int64_t>();
  NARROWCAST_CHECK_INPUT(bytes >= 0 && bytes <= kLongestInventory, kStep, ": the inventory of rank ", source, " has ",
                         bytes, " bytes, where at most ", kLongestInventory, " are taken");
  at::Tensor content = at::zeros({std::max<int64_t>(1, bytes)}, at::kByte);
  std::memcpy(content.data_ptr(), text.data(), text.size());
  content = broadcast_from(group, source, content);
  return {reinterpret_cast<const char*>(content.const_data_ptr<uint8_t>()), static_cast<size_t>(bytes)};
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
at::Tensor message_of(const Inventory& inventory, size_t source, const RankState& state) {
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

// The ranks that send, and those that receive.
struct Roles {
  std::vector<int64_t> sources;
  std::vector<int64_t> needy;
};

// Moves the tensors from the sources to the ranks that need them. Returns them on these, else an empty map.
TensorMap move_tensors(const ProcessGroupPtr& group, const Inventory& inventory, const Roles& roles,
                       const RankState* own) {
  return with_network_errors(group->getRank(), kStep, [&] {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::vector<std::vector<at::Tensor>> messages;  // by source; on a source only its own
    const bool is_needy = std::ranges::binary_search(roles.needy, group->getRank());
    TensorMap tensors;
    for (size_t source = 0; source < roles.sources.size(); ++source) {
      std::vector<at::Tensor> message;
      const int64_t bytes = bytes_from(inventory, source);
      if (bytes > 0 && roles.sources[source] == group->getRank()) {
        message = {message_of(inventory, source, *own)};
        for (const int64_t rank : roles.needy) {
          works.push_back(group->send(message, static_cast<int>(rank), kTag));
        }
      } else if (bytes > 0 && is_needy) {
        message = {at::empty({bytes}, at::kByte)};
        works.push_back(group->recv(message, static_cast<int>(roles.sources[source]), kTag));
      }
      messages.push_back(std::move(message));
    }
    for (const auto& work : works) {
      work->wait();
    }
    for (size_t source = 0; is_needy && source < roles.sources.size(); ++source) {
      if (!messages[source].empty()) read_message(inventory, source, messages[source][0], tensors);
    }
    return tensors;
  });
}

}  // namespace

std::optional<SharedState> share_states(const ProcessGroupPtr& group, std::optional<RankState> own,
                                        std::string* why_nothing) {
  std::vector<RankState> states;
  if (own) states.push_back(*std::move(own));
  return share_states(group, std::move(states), why_nothing);
}

std::optional<SharedState> share_states(const ProcessGroupPtr& group, std::vector<RankState> states,
                                        std::string* why_nothing) {
  const std::vector<HeldStates> ranks = held_states_of_ranks(group, states);
  std::string why;
  const int64_t furthest = common_point(ranks, why);
  if (furthest == kNothing) {
    if (why_nothing != nullptr) *why_nothing = why;
    return std::nullopt;
  }
  const Roles roles = {.sources = ranks_that(ranks, [&](const auto& rank) { return rank.has(furthest); }),
                       .needy = ranks_that(ranks, [&](const auto& rank) { return !rank.has(furthest); })};
  const auto found = std::ranges::find(states, furthest, &RankState::point);
  const bool is_received = !ranks[static_cast<size_t>(group->getRank())].has(furthest);
  RankState* const own = is_received ? nullptr : &*found;
  const int64_t first = roles.sources[0];
  const std::string text = text_from(group, first, group->getRank() == first ? to_text(*own) : "");
  const Inventory inventory = read_inventory(text, roles.sources.size());
  const TensorMap tensors = move_tensors(group, inventory, roles, own);
  SharedState shared = {.state = {.point = furthest, .values = inventory.values},
                        .is_received = is_received,
                        .sources = std::ssize(roles.sources),
                        .first_source = first,
                        .lost_ranks = ranks_that(ranks, [](const auto& rank) { return rank.is_lost(); })};
  shared.state.common = is_received ? hooks::part_of(tensors, kCommon) : std::move(own->common);
  shared.state.own = is_received ? hooks::part_of(tensors, kOwn) : std::move(own->own);
  return shared;
}

}  // namespace narrowcast::recovery

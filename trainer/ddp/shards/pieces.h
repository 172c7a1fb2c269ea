// Pieces of tensors that several ranks hold together, by the tensor's name and a range of its elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/process_group.h>

namespace narrowcast::pieces {

// The elements from `begin` to `end`, which is not included, of a tensor in its memory's order. Empty only for a tensor
// without elements.
struct Range {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t numel() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// "NAME[begin, end)", for people.
std::string describe(const Range& range);

// The ranges that one rank holds.
struct Holding {
  std::map<std::string, int64_t> numels = {};  // of all tensors, also of those of which it holds nothing
  std::vector<Range> ranges = {};
};

// As JSON, and back. Throws CorruptInputError naming `source` for other JSON.
nlohmann::json to_json(const Holding& holding);
Holding read_holding(const nlohmann::json& json, const std::string& source);

// The first elements that none of the holdings has. Empty if together they have all elements of all their tensors.
std::optional<Range> first_gap(const std::vector<const Holding*>& holdings);

// The state that belongs to a range of a parameter.
struct Piece {
  Range range;
  std::optional<int64_t> step = {};  // the number of steps taken, if the state counts them
  hooks::HookState tensors = {};     // by name: 1-D, on the CPU, with the range's number of elements; may be empty
};

// The pieces of one rank.
struct HeldPieces {
  std::map<std::string, int64_t> numels = {};  // as in Holding
  std::vector<Piece> pieces = {};

  Holding holding() const;
};

// A collective: each rank gets the pieces that it wants, from the ranks that hold parts of them. All ranks that hold
// the same element must hold the same bits. Returns them in the order of `wanted`.
//
// A rank takes what it holds itself from its own memory. If it wants just that range, it gets the same tensors.
// Elements that several others hold are spread over these. They are sent from the memory of their tensors, and received
// into the result's: nothing else is allocated.
//
// Throws c10::DistBackendError if a peer fails, and CorruptInputError, on all ranks and before anything is sent, if no
// rank holds an element that a rank wants, or if the parts of a piece do not belong together.
std::vector<Piece> move_pieces(const ProcessGroupPtr& group, const std::vector<Piece>& held,
                               const std::vector<Range>& wanted);

}  // namespace narrowcast::pieces

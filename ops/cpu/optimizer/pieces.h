// Several arrays as one: how a list of tensors of any sizes is divided among threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace narrowcast::cpu {

// Elements per thread, enough to start one for: some microseconds of work.
inline constexpr int64_t kPiecesGrain = int64_t{1} << 15;

// The number of elements of all pieces. A piece has a member function size().
template <class Piece>
int64_t size_of_all(const std::vector<Piece>& pieces) {
  int64_t size = 0;
  for (const Piece& piece : pieces) size += piece.size();
  return size;
}

// Calls visit(piece, first, n) for n elements from `first` on of each piece that has elements in begin..end of all
// pieces as one array.
template <class Piece, class Visit>
void visit_pieces(const std::vector<Piece>& pieces, int64_t begin, int64_t end, const Visit& visit) {
  for (const Piece& piece : pieces) {
    const int64_t first = std::max<int64_t>(begin, 0);
    const int64_t n = std::min(end, piece.size()) - first;
    if (n > 0) visit(piece, first, n);
    begin -= piece.size();
    end -= piece.size();
  }
}

}  // namespace narrowcast::cpu

// A thread's place in the team (a warp or a block) that works on a part of a row together.
#pragma once

namespace narrowcast::cuda {

struct Lane {
  int rank;  // 0 <= rank < team
  int team;  // threads, a multiple of 32
};

}  // namespace narrowcast::cuda

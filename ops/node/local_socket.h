// Sockets between processes of one machine, by which ranks find out that they share a network card and hand each other
// memory.
//
// Their names are of the abstract namespace of Linux, of which every network namespace has one of its own: whoever can
// connect shares this process's interfaces. They vanish with the processes. Only processes of the same user are
// accepted.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "ops/node/shared_memory.h"

namespace narrowcast::node {

// A name that nobody can guess.
using SocketName = std::array<uint8_t, 16>;

SocketName random_socket_name();

// Listens under that name; nobody has to accept for others to connect. std::system_error if the system refuses it.
Descriptor listen_locally(const SocketName& name);

// A connection to whoever listens under that name as the same user, on which `rank` is told; none if there is nobody.
// std::system_error if the system refuses it for another reason.
Descriptor connect_locally(const SocketName& name, int64_t rank);

// The next connection, which is there already, and the rank that it told; nothing if there is none. Connections of
// other users and such that told nothing are closed. std::system_error if the system refuses it.
struct Accepted {
  Descriptor connection;
  int64_t rank = 0;
};
std::optional<Accepted> accept_locally(const Descriptor& listening);

// Hands `descriptor` to the other end. std::system_error if that is gone.
void send_descriptor(const Descriptor& connection, const Descriptor& descriptor);

// What the other end has handed over; std::system_error if there is nothing yet.
Descriptor receive_descriptor(const Descriptor& connection);

// Whether the other end has closed its side, or its process has ended.
bool is_closed(const Descriptor& connection);

}  // namespace narrowcast::node

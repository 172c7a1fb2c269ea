#include "ops/node/local_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <system_error>

namespace narrowcast::node {
namespace {

TEST(LocalSocket, TellsWhoHasConnected) {
  const SocketName name = random_socket_name();
  const Descriptor listening = listen_locally(name);
  EXPECT_FALSE(accept_locally(listening).has_value());
  const Descriptor seven = connect_locally(name, 7);
  const Descriptor nine = connect_locally(name, 9);
  ASSERT_TRUE(seven && nine);
  EXPECT_EQ(accept_locally(listening)->rank, 7);
  EXPECT_EQ(accept_locally(listening)->rank, 9);
  EXPECT_FALSE(accept_locally(listening).has_value());
}

TEST(LocalSocket, NobodyListensUnderAnotherName) {
  EXPECT_FALSE(connect_locally(random_socket_name(), 1));
  EXPECT_NE(random_socket_name(), random_socket_name());
}

TEST(LocalSocket, IsGoneWithItsProcess) {
  const SocketName name = random_socket_name();
  Descriptor listening = listen_locally(name);
  const Descriptor connection = connect_locally(name, 1);
  EXPECT_FALSE(is_closed(connection));
  listening.reset();
  EXPECT_TRUE(is_closed(connection));
  EXPECT_FALSE(connect_locally(name, 1));
}

TEST(LocalSocket, NoticesTheEndOfTheOtherSide) {
  const SocketName name = random_socket_name();
  const Descriptor listening = listen_locally(name);
  Descriptor connection = connect_locally(name, 1);
  const auto accepted = accept_locally(listening);
  EXPECT_FALSE(is_closed(accepted->connection));
  connection.reset();
  EXPECT_TRUE(is_closed(accepted->connection));
}

TEST(LocalSocket, HandsADescriptorOver) {
  const SocketName name = random_socket_name();
  const Descriptor listening = listen_locally(name);
  const Descriptor connection = connect_locally(name, 1);
  const auto accepted = accept_locally(listening);
  EXPECT_THROW(receive_descriptor(connection), std::system_error) << "nothing is there yet";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Descriptor reading(ends[0]);
  {
    const Descriptor writing(ends[1]);
    send_descriptor(accepted->connection, writing);
  }
  const Descriptor received = receive_descriptor(connection);
  ASSERT_EQ(::write(received.number(), "x", 1), 1);
  char byte = 0;
  ASSERT_EQ(::read(reading.number(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
}

}  // namespace
}  // namespace narrowcast::node

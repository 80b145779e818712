// The control plane with ranks as threads, each with its own Control over localhost, and with strangers at its port.
// Real processes that are killed or stopped: control_processes_test.cc.
#include "dist/control.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/testing/test_error.h"
#include "dist/control_ranks.h"
#include "dist/message.h"
#include "dist/socket.h"
#include "dist/testing/free_port.h"
#include "dist/testing/rank_expectations.h"

namespace octet {
namespace {

RankIdentity identity_of(int32_t rank, int32_t size, int port) {
  return {.rank = rank,
          .size = size,
          .local_rank = rank,
          .local_size = size,
          .host = fmt::format("host{}", rank),
          .address = "127.0.0.1",
          .port = port,
          .token = "token"};
}

// Runs `work` for each rank in a thread; the messages of the errors by rank, "(no error)" where there was none.
std::vector<std::string> run_ranks(int32_t size, const std::function<void(const RankIdentity&)>& work,
                                   const std::string& address = "127.0.0.1") {
  const int port = free_port();
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      RankIdentity identity = identity_of(rank, size, port);
      identity.address = address;
      errors[static_cast<size_t>(rank)] = error_of([&] { work(identity); });
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

const std::string kNone = error_of([] {});

TEST(Control, OperationsOfUpToEightRanks) {
  for (int32_t size : {1, 2, 8}) {
    const auto errors = run_ranks(size, [&](const RankIdentity& identity) {
      Control control(identity);
      control.compare("settings", "a: 1\nb: 2\n");
      for (int round = 0; round < 20; ++round) {
        EXPECT_EQ(control.broadcast("plan", identity.rank == 0 ? fmt::format("plan {}", round) : "mine"),
                  fmt::format("plan {}", round));
      }
      control.close();
      EXPECT_NE(error_of([&] { control.broadcast("late", ""); }).find("broadcast late after"), std::string::npos);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, kNone);
  }
}

TEST(Control, LargeTexts) {
  const std::string text(size_t{20} << 20, 'x');
  const auto errors = run_ranks(3, [&](const RankIdentity& identity) {
    Control control(identity);
    EXPECT_EQ(control.broadcast("plan", text), text);
    control.compare("plan", text);
    control.close();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, kNone);
}

TEST(Control, HostNamesAndIPv6) {
  for (const char* address : {"localhost", "::1"}) {
    if (const std::string no = error_of([&] { listen_at(address, 0); }); no != kNone) {
      EXPECT_STREQ(address, "::1") << no;  // a machine without IPv6
      continue;
    }
    for (const std::string& error : run_ranks(
             2, [](const RankIdentity& identity) { Control(identity).close(); }, address))
      EXPECT_EQ(error, kNone);
  }
}

TEST(Control, UnlikeValuesAreNamedWithTheirFirstLine) {
  std::atomic<int> lost = 0;
  const auto errors = run_ranks(4, [&](const RankIdentity& identity) {
    Control control(identity, {.on_lost = [&](const std::string&) { ++lost; }});
    control.compare("settings", "same");
    EXPECT_EQ(error_of([&] {
                control.compare("plan", identity.rank >= 2 ? "%0 = input\n%1 = add %0, %0\nend"
                                                           : "%0 = input\n%1 = mul %0, %0\nend");
              }),
              "plan: ranks 2, 3 of 4 differ from rank 0: line 2 is '%1 = add %0, %0' on rank 2, '%1 = mul %0, %0' on "
              "rank 0");
    control.broadcast("never", "");
  });
  for (const std::string& error : errors) EXPECT_TRUE(error.starts_with("plan: ranks 2, 3 of 4 differ")) << error;
  EXPECT_EQ(lost, 0);
}

TEST(Control, AValueThatEndsEarlyAndALongLine) {
  const std::string line(1000, 'x');
  auto errors = run_ranks(2, [&](const RankIdentity& identity) {
    Control(identity).compare("data", identity.rank == 0 ? "a\nb\n" : "a\n");
  });
  EXPECT_EQ(errors[0], "data: rank 1 of 2 differs from rank 0: line 2 is the end on rank 1, 'b' on rank 0");
  errors = run_ranks(2, [&](const RankIdentity& identity) {
    Control(identity).compare("data", line + std::to_string(identity.rank) + line);
  });
  EXPECT_EQ(errors[1], fmt::format("data: rank 1 of 2 differs from rank 0: line 1 is '{0}1{1}' on rank 1, '{0}0{1}' on "
                                   "rank 0",
                                   line.substr(0, 80), line.substr(0, 79)));
}

TEST(Control, UnlikeOperationsAreNamed) {
  const auto errors = run_ranks(3, [&](const RankIdentity& identity) {
    Control control(identity);
    control.broadcast("start", "");
    identity.rank == 2 ? control.compare("stop", "") : void(control.broadcast("step", ""));
  });
  for (const std::string& error : errors)
    EXPECT_EQ(
        error,
        "ranks do not call the same operations: number 2 is 'broadcast step' on rank 0, number 2 is 'compare stop' on "
        "rank 2");
}

TEST(Control, ARankThatLeavesIsLostToAll) {
  for (int32_t leaver : {0, 1}) {
    std::mutex mutex;
    std::vector<std::string> lost;
    const auto errors = run_ranks(4, [&](const RankIdentity& identity) {
      Control control(identity, {.on_lost = [&](const std::string& why) {
                        const std::lock_guard lock(mutex);
                        lost.push_back(why);
                      }});
      control.note(12, "train");
      control.note(12, "apply");
      control.broadcast("start", "");
      if (identity.rank == leaver) return;
      const std::string first = error_of([&] { control.broadcast("step", ""); });
      EXPECT_EQ(first, error_of([&] { control.compare("stop", ""); }));
      fail(ErrorCode::kIo, "{}", first);
    });
    for (int32_t rank = 0; rank < 4; ++rank)
      EXPECT_EQ(errors[static_cast<size_t>(rank)],
                rank == leaver
                    ? kNone
                    : fmt::format("rank {0} of 4 on host{0} has ended or closed its connection; it was in step "
                                  "12, graph apply (number 2 of its run)",
                                  leaver));
    EXPECT_EQ(lost.size(), 3);
  }
}

TEST(Control, ARankThatGivesUpSaysWhy) {
  for (int32_t quitter : {0, 2}) {
    std::atomic<int> lost = 0;
    const auto errors = run_ranks(3, [&](const RankIdentity& identity) {
      Control control(identity, {.on_lost = [&](const std::string&) { ++lost; }});
      if (identity.rank == quitter) control.give_up("no space left on device");
      control.broadcast("step", "");
    });
    for (const std::string& error : errors)
      EXPECT_EQ(error,
                fmt::format("rank {0} of 3 on host{0} gave up: no space left on device; it had run no graph", quitter));
    EXPECT_GE(lost, 2);
  }
}

TEST(Control, MissingRanksAreNamed) {
  const auto errors = run_ranks(5, [&](const RankIdentity& identity) {
    if (identity.rank == 2 || identity.rank == 4) return;
    Control control(identity, {.rendezvous_timeout = 1});
  });
  EXPECT_TRUE(errors[0].starts_with("rank 0 on host0 has waited 1 s at port ")) << errors[0];
  EXPECT_NE(errors[0].find(" for ranks 2, 4 of 5: "), std::string::npos) << errors[0];
  for (size_t rank : {1, 3}) EXPECT_NE(errors[rank].find(errors[0]), std::string::npos) << errors[rank];
}

TEST(Control, WithoutRankZero) {
  const RankIdentity identity = identity_of(1, 2, free_port());
  EXPECT_EQ(error_of([&] { Control(identity, {.rendezvous_timeout = 0.1}); }),
            fmt::format("cannot reach rank 0 at 127.0.0.1 port {}: Connection refused; is it running, and may this "
                        "machine connect to it?",
                        identity.port));
}

TEST(Control, AnotherBuildOrSizeIsRefusedOnAllRanks) {
  auto errors = run_ranks(
      2, [&](const RankIdentity& identity) { Control(identity, {.build = identity.rank == 1 ? "2.0" : "1.0"}); });
  const std::string build =
      "rank 1 on host1 has build '2.0', rank 0 on host0 has '1.0': start the same program in the "
      "same way on all hosts";
  EXPECT_EQ(errors[0], build);
  EXPECT_NE(errors[1].find(build), std::string::npos) << errors[1];

  errors = run_ranks(2, [&](RankIdentity identity) {
    if (identity.rank == 1) identity.size = 3;
    Control control(identity);
  });
  EXPECT_NE(errors[0].find("rank 1 on host1 has number of ranks '3', rank 0 on host0 has '2'"), std::string::npos);
}

// Runs three ranks, of which 1 and 2 connect after `stranger` has done its worst; the lines that rank 0 logs.
std::vector<std::string> with_stranger(const std::function<void(const RankIdentity& first)>& stranger) {
  std::vector<std::string> log;
  std::promise<void> done;
  const std::shared_future<void> is_done(done.get_future());
  const auto errors = run_ranks(3, [&](const RankIdentity& identity) {
    if (identity.rank == 1) stranger(identity), done.set_value();
    if (identity.rank == 2) is_done.wait();
    Control control(identity, {.log = [&](const std::string& line) { log.push_back(line); }});
    control.broadcast("step", "");
    control.close();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, kNone);
  return log;
}

Socket connect(const RankIdentity& identity) {
  return connect_to(identity.address, identity.port, Clock::now() + std::chrono::seconds(10));
}

// Sends bytes and reads until rank 0 closes the connection.
void talk(const RankIdentity& identity, const std::string& bytes) {
  const Socket socket = connect(identity);
  ASSERT_EQ(send(socket.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL), bytes.size());
  for (char byte = 0;;) {
    ASSERT_TRUE(wait_for(socket, false, Clock::now() + std::chrono::seconds(10)));
    if (recv(socket.descriptor(), &byte, 1, 0) <= 0) break;
  }
}

TEST(Control, StrangersAreDroppedAndLogged) {
  const auto hello = [](std::vector<std::string> fields) { return encode({MessageType::kHello, std::move(fields)}); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"GET / HTTP/1.1\r\n\r\n", "it sent a message of 542393671 bytes (want 1 to 4096)"},
      {std::string("\x05\0\0\0\x63\1\0\0\0", 9), "it sent a message of type 99"},
      {std::string("\x05\0\0\0\0\xff\xff\xff\xff", 9),
       "it sent a field of 4294967295 bytes in the last 0 of a message"},
      {std::string("\x03\0\0\0\0\1\0", 7), "it sent a message is cut short"},
      {hello({"octet-control 1", "token"}), "it sent a message of type 0 has 2 fields"},
      {hello({"octet-control 1", "token", "-1", "3", "host", ""}),
       "it sent field 2 of a message of type 0 is no number"},
      {hello({"octet-control 1", "another", "1", "3", "host", ""}), "it has another token: another run's?"},
      {hello({"octet-control 1", "token", "3", "3", "host", ""}), "it calls itself rank 3 of 3"},
      {encode({MessageType::kCall, {"1", "gather", ""}}), "it sent a message of type 4 where a hello is due"},
  };
  for (const auto& one : cases) {
    const std::string& why = one.second;
    const auto log = with_stranger([&](const RankIdentity& identity) { talk(identity, one.first); });
    ASSERT_EQ(log.size(), 1) << why;
    EXPECT_TRUE(log[0].starts_with("a connection from 127.0.0.1:")) << log[0];
    EXPECT_TRUE(log[0].ends_with(" was dropped: " + why)) << log[0];
  }
  const auto log = with_stranger([](const RankIdentity& identity) { connect(identity); });  // says nothing and goes
  ASSERT_EQ(log.size(), 1);
  EXPECT_TRUE(log[0].ends_with("it was closed")) << log[0];
}

TEST(Control, AWrongTokenIsToldSo) {
  with_stranger([](RankIdentity identity) {
    identity.token = "another";
    EXPECT_EQ(error_of([&] { Control control(identity); }),
              fmt::format("rank 1 was refused by rank 0 at 127.0.0.1 port {}: it has another token: another run's?",
                          identity.port));
  });
}

TEST(Control, ASecondRankOfTheSameNumberIsRefused) {
  const auto log = with_stranger([](const RankIdentity& identity) {
    const std::string hello = encode({MessageType::kHello, {"octet-control 1", "token", "1", "3", "host9", ""}});
    const Socket first = connect(identity);
    ASSERT_EQ(send(first.descriptor(), hello.data(), hello.size(), MSG_NOSIGNAL), hello.size());
    EXPECT_NE(error_of([&] { Control control(identity); }).find("rank 1 on host1 is here already, from 127.0.0.1:"),
              std::string::npos);
  });  // the first is closed here, and rank 1 comes in its place
  ASSERT_EQ(log.size(), 2);
  EXPECT_NE(log[0].find(" was dropped: rank 1 on host1 is here already"), std::string::npos) << log[0];
  EXPECT_TRUE(log[1].starts_with("rank 1 from 127.0.0.1:") && log[1].ends_with(" was dropped: it was closed"))
      << log[1];
}

TEST(ControlRanks, ExchangeWithinGroups) {
  for (const Mesh& mesh : {Mesh{{1, 1, 1, 2}}, Mesh{{1, 2, 1, 4}}}) {
    const auto errors = run_ranks(mesh.ranks(), [&](const RankIdentity& identity) {
      Control control(identity);
      const auto rank = make_control_ranks(control, mesh, identity.rank);
      expect_exchanges_within_groups(*rank);
      expect_exchanges_of_neighbours(*rank);
      if (mesh.ranks() == 2) expect_exchanges_of_all_sizes(*rank);
      control.close();
    });
    for (const std::string& error : errors) EXPECT_EQ(error, kNone);
  }
}

TEST(ControlRanks, ParcelsThatAreSentInParts) {
  for (const std::string& error : run_ranks(3, [](const RankIdentity& identity) {
         Control control(identity);
         const std::vector<std::byte> whole(size_t{40} << 20, std::byte{9});
         if (identity.rank == 1)
           for (int i = 0; i < 2; ++i) control.send_parcel(2, whole);
         if (identity.rank == 2) {
           std::vector<std::byte> got(whole.size());
           control.take_parcel(1, got);
           EXPECT_TRUE(got == whole);
           EXPECT_TRUE(control.next_parcel(1) == whole) << "of a size that is not known before";
         }
         control.close();
       }))
    EXPECT_EQ(error, kNone);
}

// It has a heartbeat still, so that nothing but the time limit of the exchange finds it.
TEST(ControlRanks, ARankThatNeverComesIsNamed) {
  const auto errors = run_ranks(3, [](const RankIdentity& identity) {
    Control control(identity, {.timeout = 0.5});
    std::vector<std::byte> got(4);
    if (identity.rank == 1) control.take_parcel(2, got);
    control.broadcast("never", "");
  });
  EXPECT_EQ(errors[1], "rank 1 has waited 2.5 s for rank 2");
  EXPECT_TRUE(errors[2].starts_with("rank 1 of 3 on host1 has ended")) << errors[2];
}

TEST(ControlRanks, TheNextParcelMayComeLateButNotFromALostRank) {
  const auto errors = run_ranks(2, [](const RankIdentity& identity) {
    Control control(identity, {.timeout = 0.5});
    if (identity.rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2700));  // longer than take_parcel() waits
      control.send_parcel(1, {});
    } else {
      EXPECT_TRUE(control.next_parcel(0).empty());
    }
    control.broadcast("taken", "");
    check(identity.rank == 1, ErrorCode::kInternal, "leaves");
    control.next_parcel(0);
  });
  EXPECT_TRUE(errors[1].starts_with("rank 0 of 2 on host0 has ended")) << errors[1];
}

TEST(ControlRanks, UnlikeExchangesAreRefused) {
  run_ranks(3, [](const RankIdentity& identity) {
    Control control(identity);
    expect_unlike_exchanges_are_refused(*make_control_ranks(control, {{1, 1, 1, 3}}, identity.rank));
  });
}

}  // namespace
}  // namespace octet

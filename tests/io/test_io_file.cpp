// SPDX-License-Identifier: Apache-2.0
#include <zbpp/io/durable.hpp>
#include <zbpp/io/file.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/scratch_folder.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>

#if __has_include(<sys/resource.h>)
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace test_io_file {

namespace fs = std::filesystem;

namespace {

class folder : public zbpp::test::scratch_folder {
 public:
  auto files() const { return std::distance(fs::directory_iterator(path()), {}); }
};

template <class Action>
std::string io_failure(Action action) {
  return zbpp::test::refusal(zbpp::errc::io_failed, action);
}

bool is_done(std::string const& refused) { return refused.starts_with('<'); }

}  // namespace

TEST_CASE("a file is read as it was written", "[io][file]") {
  folder const here;
  std::string const text("one\r\ntwo\0three\n", 15);
  zbpp::write_file(here / "a.txt", text);
  CHECK(zbpp::read_file(here / "a.txt") == text);
  zbpp::write_file(here / "a.txt", "");
  CHECK(zbpp::read_file(here / "a.txt").empty());
  std::string const large(1'000'000, 'x');
  zbpp::write_file(here / "a.txt", large);
  CHECK(zbpp::read_file(here / "a.txt") == large);
  CHECK(here.files() == 1);
}

TEST_CASE("what cannot be read or written is named with the reason", "[io][file]") {
  folder const here;
  auto const missing = here / "missing" / "a.txt";
  auto const write = io_failure([&] { zbpp::write_file(missing, "x"); });
  CHECK(write == missing.string() + ": cannot be written: No such file or directory");
  auto const read = io_failure([&] { static_cast<void>(zbpp::read_file(missing)); });
  CHECK(read == missing.string() + ": cannot be read: No such file or directory");

  fs::create_directory(here / "folder");
  CHECK_FALSE(is_done(io_failure([&] { zbpp::write_file(here / "folder", "x"); })));
  CHECK_FALSE(is_done(io_failure([&] { static_cast<void>(zbpp::read_file(here / "folder")); })));
  auto const long_name = here / std::string(400, 'n').c_str();
  CHECK_FALSE(is_done(io_failure([&] { zbpp::write_file(long_name, "x"); })));
  CHECK(here.files() == 1);
}

TEST_CASE(
    "a symbolic link stays, and what it points to is written and keeps its permissions",
    "[io][file]") {
  folder const here;
  zbpp::write_file(here / "real.txt", "old");
  fs::permissions(here / "real.txt", fs::perms::owner_all);
  fs::create_symlink("real.txt", here / "link.txt");
  zbpp::write_file(here / "link.txt", "new");
  CHECK(fs::is_symlink(here / "link.txt"));
  CHECK(zbpp::read_file(here / "real.txt") == "new");
  CHECK(fs::status(here / "real.txt").permissions() == fs::perms::owner_all);
}

TEST_CASE("a symbolic link to a file that is not there yet makes the file", "[io][file]") {
  folder const here;
  fs::create_symlink("real.txt", here / "link.txt");
  zbpp::write_file(here / "link.txt", "new");
  CHECK(fs::is_symlink(here / "link.txt"));
  CHECK(zbpp::read_file(here / "real.txt") == "new");
}

TEST_CASE("a file whose name is as long as names may be is written", "[io][file]") {
  folder const here;
  auto const path = here / std::string(250, 'n').c_str();
  zbpp::write_file(path, "x");
  CHECK(zbpp::read_file(path) == "x");
}

TEST_CASE("a device is written as it is, and its failure reported", "[io][file]") {
  if (!fs::is_character_file("/dev/null") || !fs::is_character_file("/dev/full"))
    return zbpp::test::skip("/dev/null and /dev/full");
  zbpp::write_file("/dev/null", "x");
  CHECK(fs::is_character_file("/dev/null"));
  CHECK_FALSE(is_done(io_failure([] { zbpp::write_file("/dev/full", "x"); })));
}

TEST_CASE("a text beyond the bound is refused, and the bound named", "[io][file]") {
  folder const here;
  zbpp::write_file(here / "a.txt", std::string(100'000, 'x'));
  CHECK(zbpp::read_file(here / "a.txt", 100'000).size() == 100'000);
  CHECK(
      io_failure([&] { static_cast<void>(zbpp::read_file(here / "a.txt", 99'999)); }) ==
      (here / "a.txt").string() + ": found more than 99999 bytes; expected at most that many");
  CHECK_FALSE(is_done(io_failure([&] { static_cast<void>(zbpp::read_file(here / "a.txt", 0)); })));
  if (!fs::is_character_file("/dev/zero")) return;
  CHECK(io_failure([] {
          static_cast<void>(zbpp::read_file("/dev/zero", 1'000'000));
        }) == "/dev/zero: found more than 1000000 bytes; expected at most that many");
}

TEST_CASE("an open stream is read to its end and written whole", "[io][file]") {
  folder const here;
  zbpp::write_file(here / "a.txt", "one two");
  auto* const from = std::fopen((here / "a.txt").c_str(), "rb");
  REQUIRE(from != nullptr);
  CHECK(std::fgetc(from) == 'o');
  CHECK(zbpp::read_stream(from, "the stream") == "ne two");
  std::fclose(from);
  auto* const to = std::fopen((here / "b.txt").c_str(), "wb");
  REQUIRE(to != nullptr);
  zbpp::write_stream(to, "the stream", "three");
  CHECK(zbpp::read_file(here / "b.txt") == "three");
  CHECK(io_failure([&] {
          static_cast<void>(zbpp::read_stream(to, "the stream"));
        }) == "the stream: cannot be read: Bad file descriptor");
  std::fclose(to);
}

#if __has_include(<sys/resource.h>)
TEST_CASE("a pipe is read while somebody writes to it, and never waited for", "[io][file]") {
  folder const here;
  auto const pipe = here / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  auto const refused = pipe.string() + ": cannot be read: it is a pipe that nobody writes to; "
                                       "start the writer first";
  CHECK(io_failure([&] { static_cast<void>(zbpp::read_file(pipe)); }) == refused);
  auto const held = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);  // what is written stays in it
  auto const writer = ::open(pipe.c_str(), O_WRONLY);
  REQUIRE(held >= 0);
  REQUIRE(writer >= 0);
  CHECK(::write(writer, "text", 4) == 4);
  ::close(writer);
  CHECK(zbpp::read_file(pipe) == "text");
  CHECK(io_failure([&] { static_cast<void>(zbpp::read_file(pipe)); }) == refused);

  auto const late = ::open(pipe.c_str(), O_WRONLY);
  std::thread slow([&] {
    static_cast<void>(::write(late, "later", 5));
    ::close(late);
  });
  CHECK(zbpp::read_file(pipe) == "later");
  slow.join();
  ::close(held);
}

TEST_CASE("a write that fails half way leaves the old file and nothing else", "[io][file]") {
  folder const here;
  zbpp::write_file(here / "a.txt", "old");
  ::rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  auto limit = before;
  limit.rlim_cur = 8192;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  auto const text =
      io_failure([&] { zbpp::write_file(here / "a.txt", std::string(100'000, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(text == (here / "a.txt").string() + ": cannot be written: File too large");
  CHECK(zbpp::read_file(here / "a.txt") == "old");
  CHECK(here.files() == 1);
}
#endif

TEST_CASE("a durable file appears as a whole or leaves the old one", "[io][file]") {
  folder const here;
  auto const path = here / "kept";
  std::string const first = "one, ";
  std::string const second = "two";
  std::array const pieces{std::as_bytes(std::span(first)), std::as_bytes(std::span(second))};
  zbpp::write_durably(path, pieces);
  zbpp::sync_folder(path.parent_path());
  CHECK(zbpp::read_file(path) == "one, two");

  int calls = 0;
  auto const interrupt = [&] {
    if (++calls == 2) throw std::runtime_error("no more");
  };
  CHECK_THROWS_WITH(zbpp::write_durably(path, pieces, interrupt), "no more");
  CHECK(zbpp::read_file(path) == "one, two");
  CHECK(here.files() == 1);
  zbpp::write_durably(path, std::span(pieces).first(1));
  CHECK(zbpp::read_file(path) == "one, ");
  CHECK(here.files() == 1);

  CHECK_THAT(
      io_failure([&] { zbpp::write_durably(here / "none" / "kept", pieces); }),
      Catch::Contains("kept: cannot be written: "));
  CHECK_THAT(
      io_failure([&] { zbpp::sync_folder(here / "none"); }),
      Catch::Contains("none: cannot be written: "));
}

}  // namespace test_io_file

// SPDX-License-Identifier: Apache-2.0
#include <zbpp/asio/launch.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace test_asio_launch {

namespace {

using zbpp::asio::find_launch;
using zbpp::asio::launch_arguments;
using variables = std::map<std::string, std::string>;

zbpp::asio::environment_lookup in(variables const& environment) {
  return [&environment](char const* name) -> std::optional<std::string> {
    auto const found = environment.find(name);
    if (found == environment.end()) return {};
    return found->second;
  };
}

// One line to compare: rank/ranks, local rank, host:port, source.
std::string found(variables const& environment, launch_arguments const& arguments = {}) {
  auto const found = find_launch(arguments, in(environment));
  return std::to_string(found.rank) + "/" + std::to_string(found.ranks) + " local " +
         std::to_string(found.local_rank) + " at " + found.host + ":" + std::to_string(found.port) +
         " by " + found.source;
}

std::string refused(variables const& environment, launch_arguments const& arguments = {}) {
  return zbpp::test::refusal([&] { static_cast<void>(find_launch(arguments, in(environment))); });
}

std::string first_host(std::string const& list) {
  return find_launch(
             {}, in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_NODELIST", list}}))
      .host;
}

}  // namespace

TEST_CASE("each launcher's variables are understood", "[asio][launch]") {
  CHECK(
      found(
          {{"RANK", "3"},
           {"WORLD_SIZE", "8"},
           {"LOCAL_RANK", "1"},
           {"MASTER_ADDR", "node7"},
           {"MASTER_PORT", "1234"}}) == "3/8 local 1 at node7:1234 by torchrun");
  CHECK(
      found(
          {{"OMPI_COMM_WORLD_RANK", "0"},
           {"OMPI_COMM_WORLD_SIZE", "4"},
           {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}) == "0/4 local 0 at 127.0.0.1:29400 by Open MPI");
  CHECK(
      found({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}}) ==
      "1/2 local 1 at 127.0.0.1:29400 by PMI");
  CHECK(
      found(
          {{"SLURM_PROCID", "5"},
           {"SLURM_NTASKS", "6"},
           {"SLURM_LOCALID", "2"},
           {"SLURM_JOB_NODELIST", "node[03-05,9],x"}}) == "5/6 local 2 at node03:29400 by Slurm");
  CHECK(found({{"PMIX_RANK", "1"}}, {.ranks = 2}) == "1/2 local -1 at 127.0.0.1:29400 by PMIx");
}

TEST_CASE("the first launcher in the documented order is believed, whole", "[asio][launch]") {
  variables all{
      {"RANK", "1"},
      {"WORLD_SIZE", "11"},
      {"OMPI_COMM_WORLD_RANK", "2"},
      {"OMPI_COMM_WORLD_SIZE", "12"},
      {"PMI_RANK", "3"},
      {"PMI_SIZE", "13"},
      {"SLURM_PROCID", "4"},
      {"SLURM_NTASKS", "14"},
      {"SLURM_LOCALID", "4"},
      {"PMIX_RANK", "5"}};
  CHECK(found(all) == "1/11 local -1 at 127.0.0.1:29400 by torchrun");
  all.erase("RANK"), all.erase("WORLD_SIZE");
  CHECK(found(all) == "2/12 local -1 at 127.0.0.1:29400 by Open MPI");
  all.erase("OMPI_COMM_WORLD_RANK"), all.erase("OMPI_COMM_WORLD_SIZE");
  CHECK(found(all) == "3/13 local -1 at 127.0.0.1:29400 by PMI");
  all.erase("PMI_RANK"), all.erase("PMI_SIZE");
  CHECK(found(all) == "4/14 local 4 at 127.0.0.1:29400 by Slurm");
}

TEST_CASE("arguments win, one by one", "[asio][launch]") {
  variables const all{
      {"RANK", "3"},
      {"WORLD_SIZE", "8"},
      {"LOCAL_RANK", "1"},
      {"MASTER_ADDR", "node7"},
      {"MASTER_PORT", "1234"}};
  CHECK(found(all, {.rank = 4}) == "4/8 local 1 at node7:1234 by torchrun");
  CHECK(found(all, {.ranks = 5}) == "3/5 local 1 at node7:1234 by torchrun");
  CHECK(found(all, {.local_rank = 2}) == "3/8 local 2 at node7:1234 by torchrun");
  CHECK(found(all, {.host = "a"}) == "3/8 local 1 at a:1234 by torchrun");
  CHECK(found(all, {.port = 0}) == "3/8 local 1 at node7:0 by torchrun");
  // With both numbers no launcher is asked: what it says may be of another run, or wrong.
  CHECK(
      found({{"RANK", "x"}, {"MASTER_ADDR", "b"}, {"LOCAL_RANK", "7"}}, {.rank = 0, .ranks = 2}) ==
      "0/2 local -1 at b:29400 by arguments");
  CHECK(
      found({}, {.rank = 1, .ranks = 2, .local_rank = 1, .host = "c", .port = 65535}) ==
      "1/2 local 1 at c:65535 by arguments");
  CHECK(found({{"WORLD_SIZE", "3"}}, {.rank = 2}) == "2/3 local -1 at 127.0.0.1:29400 by torchrun");
  CHECK(found({{"RANK", "2"}}, {.ranks = 3}) == "2/3 local -1 at 127.0.0.1:29400 by torchrun");
}

TEST_CASE("MASTER_ADDR and MASTER_PORT count beside every launcher", "[asio][launch]") {
  for (variables environment :
       {variables{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
        variables{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
        variables{
            {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_NODELIST", "n[1-2]"}}}) {
    environment["MASTER_ADDR"] = "meet";
    environment["MASTER_PORT"] = "77";
    auto const found = find_launch({}, in(environment));
    CHECK(found.host == "meet");
    CHECK(found.port == 77);
  }
}

TEST_CASE("the run keeps off the port on which torchrun's agent listens", "[asio][launch]") {
  variables environment{
      {"RANK", "0"},
      {"WORLD_SIZE", "1"},
      {"MASTER_PORT", "29500"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  CHECK(find_launch({}, in(environment)).port == 29501);
  CHECK(find_launch({.port = 29500}, in(environment)).port == 29500);
  environment["MASTER_PORT"] = "65535";
  CHECK(find_launch({}, in(environment)).port == 65534);
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  CHECK(find_launch({}, in(environment)).port == 65535);
}

TEST_CASE("the first host of Slurm's lists is found", "[asio][launch]") {
  struct row {
    char const* list;
    char const* first;
  };
  for (row const& r : std::vector<row>{
           {"a,b", "a"},
           {"node[03-05,9],x", "node03"},
           {"x,node[03-05,9]", "x"},
           {"node[7,9-12]", "node7"},
           {"rack[1-2]n[004-005]-ib", "rack1n004-ib"},
           {"a-b-01.example.org,c", "a-b-01.example.org"},
           {"n[08],n09", "n08"},
           // One machine only: the ranks meet on loopback, where a listener listens untold.
           {"node12", "127.0.0.1"},
           {"node[12]", "127.0.0.1"}}) {
    CAPTURE(r.list);
    CHECK(first_host(r.list) == r.first);
  }
  CHECK(
      found(
          {{"SLURM_PROCID", "0"},
           {"SLURM_NTASKS", "2"},
           {"SLURM_STEP_NODELIST", "n[2-3]"},
           {"SLURM_JOB_NODELIST", "n[1-3]"}}) == "0/2 local -1 at n2:29400 by Slurm");
}

TEST_CASE("a list of hosts that makes no sense is refused", "[asio][launch]") {
  for (char const* list :
       {"node[",
        "node[1",
        "node]",
        "node[]",
        "node[a]",
        "node[1x]",
        "node[-2]",
        ",a",
        "[",
        "n[,1]",
        "n[1-2]m]"}) {
    CAPTURE(list);
    auto const text =
        refused({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_NODELIST", list}});
    CHECK(text.find("SLURM_JOB_NODELIST is '" + std::string(list) + "': ") == 0);
    CHECK(text.find("MASTER_ADDR") != std::string::npos);
  }
}

TEST_CASE("every mistake names the variable, its value and the cure", "[asio][launch]") {
  struct row {
    variables environment;
    launch_arguments arguments;
    char const* text;
  };
  for (
      row const& r : std::vector<row>{
          {{{"RANK", "3"}},
           {},
           "RANK is 3, but WORLD_SIZE is not set; set both, as torchrun does, or give the argument "
           "ranks"},
          {{{"WORLD_SIZE", "3"}},
           {},
           "WORLD_SIZE is 3, but RANK is not set; set both, as torchrun does, or give the argument "
           "rank"},
          {{{"OMPI_COMM_WORLD_SIZE", "2"}},
           {},
           "OMPI_COMM_WORLD_SIZE is 2, but OMPI_COMM_WORLD_RANK is not set; start the ranks with "
           "mpirun, or give the argument rank"},
          {{{"PMI_RANK", "2"}},
           {},
           "PMI_RANK is 2, but PMI_SIZE is not set; start the ranks with mpiexec, or give the "
           "argument ranks"},
          {{{"SLURM_NTASKS", "2"}},
           {},
           "SLURM_NTASKS is 2, but SLURM_PROCID is not set; start the ranks with srun, or give the "
           "argument rank"},
          {{{"PMIX_RANK", "2"}},
           {},
           "PMIX_RANK is 2, but nothing says how many ranks there are; set RANK and WORLD_SIZE, or "
           "give the argument ranks"},
          {{{"RANK", "three"}, {"WORLD_SIZE", "4"}},
           {},
           "RANK is 'three'; it must be a decimal number"},
          {{{"RANK", "1"}, {"WORLD_SIZE", "4x"}},
           {},
           "WORLD_SIZE is '4x'; it must be a decimal number"},
          {{{"RANK", " 1"}, {"WORLD_SIZE", "4"}}, {}, "RANK is ' 1'; it must be a decimal number"},
          {{{"RANK", "99999999999999999999"}, {"WORLD_SIZE", "4"}},
           {},
           "RANK is '99999999999999999999'; it must be a decimal number"},
          {{{"RANK", ""}, {"WORLD_SIZE", "4"}}, {}, "RANK is empty; give it a value or unset it"},
          {{{"RANK", "4"}, {"WORLD_SIZE", "4"}},
           {},
           "RANK is 4; it must be from 0 to 3, for WORLD_SIZE is 4"},
          {{{"RANK", "-1"}, {"WORLD_SIZE", "4"}},
           {},
           "RANK is -1; it must be from 0 to 3, for WORLD_SIZE is 4"},
          {{{"RANK", "4294967296"}, {"WORLD_SIZE", "4"}},
           {},
           "RANK is 4294967296; it must be from 0 to 3, for WORLD_SIZE is 4"},
          {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {}, "WORLD_SIZE is 0; it must be from 1 to 65536"},
          {{{"RANK", "0"}, {"WORLD_SIZE", "65537"}},
           {},
           "WORLD_SIZE is 65537; it must be from 1 to 65536"},
          {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}},
           {},
           "LOCAL_RANK is 2; it must be from 0 to 1"},
          {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "65536"}},
           {},
           "MASTER_PORT is 65536; it must be from 0 to 65535"},
          {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "http"}},
           {},
           "MASTER_PORT is 'http'; it must be a decimal number"},
          {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", ""}},
           {},
           "MASTER_ADDR is empty; give it a value or unset it"},
          {{{"OMPI_COMM_WORLD_RANK", "0"},
            {"OMPI_COMM_WORLD_SIZE", "8"},
            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
           {},
           "OMPI_COMM_WORLD_LOCAL_SIZE is 4 of 8 ranks, so the run spans machines; set MASTER_ADDR "
           "to the host of rank 0"},
          {{},
           {.rank = 2, .ranks = 2},
           "argument rank is 2; it must be from 0 to 1, for argument "
           "ranks is 2"},
          {{}, {.rank = 0, .ranks = 0}, "argument ranks is 0; it must be from 1 to 65536"},
          {{},
           {.rank = 0, .ranks = 1, .port = -1},
           "argument port is -1; it must be from 0 to "
           "65535"},
          {{},
           {.rank = 0, .ranks = 1, .local_rank = -1},
           "argument local_rank is -1; it must be "
           "from 0 to 0"},
          {{}, {.rank = 0, .ranks = 1, .host = ""}, "the argument host is empty; give a host name"},
          {{}, {.rank = 0}, "the argument rank is given, but not ranks; give both or none"},
          {{}, {.ranks = 2}, "the argument ranks is given, but not rank; give both or none"},
          {{},
           {},
           "nothing says which rank this process is; give the arguments rank and ranks, or start "
           "it so that one of these is set: RANK and WORLD_SIZE (torchrun), OMPI_COMM_WORLD_RANK "
           "and OMPI_COMM_WORLD_SIZE (Open MPI), PMI_RANK and PMI_SIZE (PMI), SLURM_PROCID and "
           "SLURM_NTASKS (Slurm)"}}) {
    CHECK(refused(r.environment, r.arguments) == r.text);
  }
}

TEST_CASE(
    "a run on several machines needs to be told its host, and then is fine", "[asio][launch]") {
  variables environment{
      {"OMPI_COMM_WORLD_RANK", "0"},
      {"OMPI_COMM_WORLD_SIZE", "8"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
      {"MASTER_ADDR", "node1"}};
  CHECK(found(environment) == "0/8 local -1 at node1:29400 by Open MPI");
  environment.erase("MASTER_ADDR");
  CHECK(found(environment, {.host = "node2"}) == "0/8 local -1 at node2:29400 by Open MPI");
}

TEST_CASE("the environment of the process is looked into", "[asio][launch]") {
  CHECK_FALSE(zbpp::asio::environment("ZBPP_A_VARIABLE_THAT_NOBODY_SETS"));
  CHECK(zbpp::asio::environment("PATH") == std::optional<std::string>(std::getenv("PATH")));
}

}  // namespace test_asio_launch

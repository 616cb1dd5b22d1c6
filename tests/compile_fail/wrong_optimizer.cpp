// expect: whose class derives from zbpp::optimizer
// An optimizer that a pipeline would never step, since its base is private.
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/stage.hpp>

#include <span>

#if defined(ZBPP_EXPECT_OK)
struct descent final : zbpp::optimizer {
#else
struct descent : private zbpp::optimizer {
#endif
  int layers() const override { return 1; }
  void measure(std::span<zbpp::gradient_state>, zbpp::pass_context) override {}
  void step(zbpp::step_settings const&, zbpp::pass_context) override {}
  void commit(zbpp::pass_context) override {}
  void undo(zbpp::pass_context) override {}
  void skip(zbpp::pass_context) override {}
};

struct stepping {
  descent own{};

  zbpp::flow operator()(zbpp::microbatch) { co_return; }
  descent& optimizer() { return own; }
};

zbpp::stage_ref refer(stepping& stage) { return zbpp::stage_ref(stage); }

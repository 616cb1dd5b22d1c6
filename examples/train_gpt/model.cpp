// SPDX-License-Identifier: Apache-2.0
//
// The layers of the model: blocks of attention and a feed-forward layer between an embedding and a
// head. Each has F, B and W, and says what it keeps and until when. Products are those of Eigen,
// sums have a fixed order, so the bits are the same wherever the numbers lie.
#include "model.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#if !defined(EIGEN_DONT_PARALLELIZE)
#error "define EIGEN_DONT_PARALLELIZE: a rank is one thread, and a product has one order of sums"
#endif

namespace gpt {
namespace {

// Arrays [rows, columns] seen as matrices; and what is only read, wherever it lies.
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using view = Eigen::Map<matrix, Eigen::Unaligned, Eigen::OuterStride<>>;
using const_view = Eigen::Map<matrix const, Eigen::Unaligned, Eigen::OuterStride<>>;
using input = Eigen::Ref<matrix const, 0, Eigen::OuterStride<>> const&;
using row = Eigen::Map<Eigen::RowVectorXf>;
using const_row = Eigen::Map<Eigen::RowVectorXf const>;

[[nodiscard]] view as_matrix(float* x, index rows, index columns) {
  return {x, rows, columns, Eigen::OuterStride<>(columns)};
}
[[nodiscard]] const_view as_matrix(float const* x, index rows, index columns) {
  return {x, rows, columns, Eigen::OuterStride<>(columns)};
}

/// Cuts one allocation into matrices, in the order of the calls; without one it only counts.
class cutter {
 public:
  explicit cutter(float* first) : first_(first) {}

  /// @return the next matrix
  [[nodiscard]] view take(index rows, index columns) {
    auto* const at = first_ == nullptr ? nullptr : first_ + used_;
    used_ += whole_lines(rows * columns);
    return as_matrix(at, rows, columns);
  }
  /// @return floats taken so far
  [[nodiscard]] index used() const { return used_; }

 private:
  float* first_;
  index used_ = 0;
};

/// Cuts what a microbatch keeps.
struct cutters {
  cutter until_b, until_w, gradients;
};

/// Adds the elements of a row in 16 interleaved partial sums, then those pairwise: Eigen's own
/// order of a sum depends on where the row lies.
template <class Row>
[[nodiscard]] float sum(Row const& x) {
  constexpr index lanes = 16;
  std::array<float, lanes> partial{};
  auto* const lane = partial.data();
  index i = 0;
  for (; i + lanes <= x.size(); i += lanes)
    for (index l = 0; l < lanes; ++l) lane[l] += x.coeff(i + l);
  for (index l = 0; i + l < x.size(); ++l) lane[l] += x.coeff(i + l);
  for (index width = lanes / 2; width > 0; width /= 2)
    for (index l = 0; l < width; ++l) lane[l] += lane[l + width];
  return lane[0];
}

/// Gives the largest of `count` > 0 numbers.
[[nodiscard]] float largest(float const* x, index count) {
  constexpr index lanes = 16;
  std::array<float, lanes> partial;
  partial.fill(x[0]);
  auto* const lane = partial.data();
  index i = 0;
  for (; i + lanes <= count; i += lanes)
    for (index l = 0; l < lanes; ++l) lane[l] = lane[l] < x[i + l] ? x[i + l] : lane[l];
  for (index l = 0; i + l < count; ++l) lane[l] = lane[l] < x[i + l] ? x[i + l] : lane[l];
  return *std::max_element(partial.begin(), partial.end());
}

/// Gives e^x to within 2 units in the last place; x is limited to [-87, 88], nan stays nan.
/// @source the polynomial of expf in Cephes, S. Moshier
[[nodiscard]] float exponential(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  // Adding 1.5 * 2^23 leaves the nearest whole number of powers of two in the low bits.
  constexpr float round = 12582912.0F;
  float const shifted = x * 1.44269504F + round;
  float const power = shifted - round;
  float const rest = (x - power * 0.693359375F) - power * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * rest + 1.3981999507e-3F;
  p = p * rest + 8.3334519073e-3F;
  p = p * rest + 4.1665795894e-2F;
  p = p * rest + 1.6666665459e-1F;
  p = p * rest + 5.0000001201e-1F;
  p = p * rest * rest + rest + 1.0F;
  auto const exponent = (std::bit_cast<std::uint32_t>(shifted) + 127U) << 23U;
  return p * std::bit_cast<float>(exponent);
}

/// Replaces each number by e^(x - largest).
/// @return the largest of them
float exponentials_in_place(float* x, index count) {
  float const top = largest(x, count);
  for (index i = 0; i < count; ++i) x[i] = exponential(x[i] - top);
  return top;
}

/// Is GELU in its tanh form: x * sigmoid(slope * (x + cubic * x^3)), element by element.
/// @source Hendrycks and Gimpel, arXiv 1606.08415 sec. 2; slope is 2 * sqrt(2 / pi)
class gelu {
 public:
  static void forward(index count, float const* x, float* y) {
    for (index i = 0; i < count; ++i)
      y[i] = x[i] * sigmoid(slope * (x[i] + cubic * x[i] * x[i] * x[i]));
  }
  /// Sets x, the input, to the gradient of that input.
  static void backward_input_in_place(index count, float const* dy, float* x) {
    for (index i = 0; i < count; ++i) {
      float const square = x[i] * x[i];
      float const gate = sigmoid(slope * (x[i] + cubic * square * x[i]));
      float const inner = slope * (1.0F + 3.0F * cubic * square);
      x[i] = dy[i] * (gate + x[i] * gate * (1.0F - gate) * inner);
    }
  }

 private:
  static constexpr float slope = 1.5957691216F;
  static constexpr float cubic = 0.044715F;

  [[nodiscard]] static float sigmoid(float x) { return 1.0F / (1.0F + exponential(-x)); }
};

/// Is a product with a weight [outputs, inputs]: y = x weight^T.
class product {
 public:
  product(parameter weight, index inputs, index outputs)
      : inputs_(inputs), outputs_(outputs), weight_(weight) {}

  void forward(parameter_set const& p, input x, view y) const {
    y.noalias() = x * weight(p).transpose();
  }
  void forward_add(parameter_set const& p, input x, view y) const {
    y.noalias() += x * weight(p).transpose();
  }
  void backward_input(parameter_set const& p, input dy, view dx) const {
    dx.noalias() = dy * weight(p);
  }
  void backward_weight(parameter_set& p, input x, input dy) const {
    as_matrix(p.gradient(weight_), outputs_, inputs_).noalias() += dy.transpose() * x;
  }

 private:
  [[nodiscard]] const_view weight(parameter_set const& p) const {
    return as_matrix(p.value(weight_), outputs_, inputs_);
  }

  index inputs_, outputs_;
  parameter weight_;
};

/// Is a row that is added to each one.
class bias {
 public:
  explicit bias(parameter values) : values_(values) {}

  void forward_add(parameter_set const& p, view y) const {
    y.rowwise() += const_row(p.value(values_), values_.size);
  }
  void backward_weight(parameter_set& p, input dy) const {
    row all(p.gradient(values_), values_.size);
    for (index r = 0; r < dy.rows(); ++r) all += dy.row(r);
  }

 private:
  parameter values_;
};

/// Is a linear layer: y = x weight^T + bias, with a weight [outputs, inputs].
class linear {
 public:
  linear(product weight, parameter values) : weight_(weight), bias_(values) {}

  void forward(parameter_set const& p, input x, view y) const {
    y.setZero();
    bias_.forward_add(p, y);
    weight_.forward_add(p, x, y);
  }
  void backward_input(parameter_set const& p, input dy, view dx) const {
    weight_.backward_input(p, dy, dx);
  }
  void backward_weight(parameter_set& p, input x, input dy) const {
    weight_.backward_weight(p, x, dy);
    bias_.backward_weight(p, dy);
  }

 private:
  product weight_;
  bias bias_;
};

/// Is a layer norm: rows with mean 0 and variance 1, times gamma plus beta, column by column. The
/// normal rows and their factors, `scale`, are kept for the passes backward.
class layer_norm {
 public:
  layer_norm(
      parameter_set& to, index part, std::string_view gamma, std::string_view beta, index width)
      : width_(width),
        gamma_(to.add(part, gamma, width, 1.0F, 0.0F)),
        beta_(to.add(part, beta, width, 0.0F, 0.0F)) {}

  void forward(parameter_set const& p, input x, view normal, view scale, view y) const {
    constexpr float epsilon = 1e-5F;
    auto const share = 1.0F / static_cast<float>(width_);
    for (index r = 0; r < x.rows(); ++r) {
      auto out = normal.row(r);
      out = x.row(r).array() - share * sum(x.row(r));
      float const variance = share * sum(out.cwiseProduct(out));
      scale.coeffRef(r, 0) = 1.0F / std::sqrt(variance + epsilon);
      out *= scale.coeff(r, 0);
    }
    forward_again(p, normal, y);
  }
  /// Makes the output anew.
  void forward_again(parameter_set const& p, input normal, view y) const {
    const_row const beta(p.value(beta_), width_);
    for (index r = 0; r < y.rows(); ++r) y.row(r) = normal.row(r).cwiseProduct(gamma(p)) + beta;
  }
  /// Adds to dx.
  void backward_input_add(
      parameter_set const& p, input dy, input normal, input scale, view dx) const {
    auto const share = 1.0F / static_cast<float>(width_);
    for (index r = 0; r < dx.rows(); ++r) {
      auto const up = dy.row(r).cwiseProduct(gamma(p));
      auto const in = normal.row(r);
      float const mean = share * sum(up);
      float const slope = share * sum(up.cwiseProduct(in));
      dx.row(r).array() += scale.coeff(r, 0) * (up.array() - mean - in.array() * slope);
    }
  }
  void backward_weight(parameter_set& p, input normal, input dy) const {
    row dgamma(p.gradient(gamma_), width_);
    row dbeta(p.gradient(beta_), width_);
    for (index r = 0; r < dy.rows(); ++r) {
      dgamma += dy.row(r).cwiseProduct(normal.row(r));
      dbeta += dy.row(r);
    }
  }

 private:
  [[nodiscard]] const_row gamma(parameter_set const& p) const { return {p.value(gamma_), width_}; }

  index width_;
  parameter gamma_, beta_;
};

/// Is causal attention over some heads: queries, keys and values [tokens, 3 width] -> [tokens,
/// width], with the width of these heads.
class attention {
 public:
  explicit attention(model_config const& config) : c_(config) {}

  /// @return floats of scratch memory that B needs
  [[nodiscard]] index scratch() const { return c_.context * (c_.context + head_width); }

  /// Sets the probabilities [sequences * heads * context, context], and y to the mean of the values
  /// under them.
  void forward(view qkv, view probabilities, view y) const {
    for_each_head(qkv, probabilities, y, [](head const& h) {
      auto p = h.probabilities;
      p.noalias() = (scale() * h.query) * h.key.transpose();
      for (index t = 0; t < p.rows(); ++t) {
        auto seen = p.row(t).head(t + 1);
        exponentials_in_place(seen.data(), seen.size());
        seen *= 1.0F / sum(seen);
        p.row(t).tail(p.cols() - t - 1).setZero();
      }
      auto out = h.rows;
      out.noalias() = p * h.value;
    });
  }

  /// Sets qkv to its own gradient.
  /// @param dy  is only read
  void backward_input_in_place(view dy, view probabilities, float* scratch, view qkv) const {
    auto dp = as_matrix(scratch, c_.context, c_.context);  // becomes the gradient of the scores
    auto dquery = as_matrix(scratch + dp.size(), c_.context, head_width);
    for_each_head(qkv, probabilities, dy, [&](head h) {
      dp.noalias() = h.rows * h.value.transpose();
      h.value.noalias() = h.probabilities.transpose() * h.rows;
      for (index t = 0; t < dp.rows(); ++t) {
        auto const p = h.probabilities.row(t).head(t + 1);
        auto seen = dp.row(t).head(t + 1);
        float const mean = sum(p.cwiseProduct(seen));
        seen.array() = scale() * p.array() * (seen.array() - mean);
        dp.row(t).tail(dp.cols() - t - 1).setZero();
      }
      dquery.noalias() = dp * h.key;
      h.key.noalias() = dp.transpose() * h.query;
      h.query = dquery;
    });
  }

 private:
  // Sees one head of one sequence.
  struct head {
    view query, key, value;  // [context, head_width]
    view probabilities;      // [context, context]
    view rows;               // [context, head_width] of the output or its gradient
  };

  [[nodiscard]] static float scale() { return 1.0F / std::sqrt(static_cast<float>(head_width)); }

  template <class Work>
  void for_each_head(view qkv, view probabilities, view rows, Work const& work) const {
    auto const n = c_.context;
    auto const width = rows.cols();
    auto const heads = width / head_width;
    for (index b = 0; b < c_.sequences; ++b)
      for (index h = 0; h < heads; ++h) {
        auto const cut = [&](view all, index column) {
          auto* const first = &all.coeffRef(b * n, column + h * head_width);
          return view(first, n, head_width, Eigen::OuterStride<>(all.outerStride()));
        };
        work(head{
            cut(qkv, 0),
            cut(qkv, width),
            cut(qkv, 2 * width),
            as_matrix(&probabilities.coeffRef((b * heads + h) * n, 0), n, n),
            cut(rows, 0)});
      }
  }

  model_config c_;
};

/// Is a transformer block: rows -> rows. Members of a tensor group divide its heads and hidden
/// units; behind both products that bring the parts together, and on the way back, their results
/// are added up in the order of the members. What has the width of the rows is on each member.
/// @source arXiv 1909.08053 sec. 3
class block {
 public:
  /// Sees what a microbatch keeps in a block.
  struct saved {
    view scale_1, scale_2;    // of the norms, until B
    view probabilities;       // until B
    view normal_1, normal_2;  // of the norms, until W
    view qkv;                 // until W; B makes it its gradient
    view mixed;               // out of attention, until W
    view hidden;              // into GELU, until W; B makes it its gradient
    view active;              // out of GELU, until W
    view dnorm_1, dnorm_2;    // from B until W
    view dmiddle;             // gradient between attention and MLP, from B until W

    /// @param width   of the heads that are here
    /// @param hidden_units  that are here
    saved(model_config const& c, index width, index hidden_units, cutters& from)
        : scale_1(from.until_b.take(c.tokens(), 1)),
          scale_2(from.until_b.take(c.tokens(), 1)),
          probabilities(from.until_b.take(width / head_width * c.tokens(), c.context)),
          normal_1(from.until_w.take(c.tokens(), c.width)),
          normal_2(from.until_w.take(c.tokens(), c.width)),
          qkv(from.until_w.take(c.tokens(), 3 * width)),
          mixed(from.until_w.take(c.tokens(), width)),
          hidden(from.until_w.take(c.tokens(), hidden_units)),
          active(from.until_w.take(c.tokens(), hidden_units)),
          dnorm_1(from.gradients.take(c.tokens(), c.width)),
          dnorm_2(from.gradients.take(c.tokens(), c.width)),
          dmiddle(from.gradients.take(c.tokens(), c.width)) {}
  };
  /// Cuts what a microbatch keeps.
  [[nodiscard]] saved saved_in(cutters& from) const {
    return {c_, shares_.back().width.last, shares_.back().hidden.last, from};
  }

  /// Adds its parameters to a set; `part` is its place in the model.
  /// @param members  whose shares it has
  block(model_config const& c, index part, range members, parameter_set& to)
      : c_(c),
        attention_(c),
        norm_1_(to, part, "norm 1 gamma", "norm 1 beta", c.width),
        out_bias_(to.add(part, "attention out bias", c.width, 0.0F, 0.0F)),
        norm_2_(to, part, "norm 2 gamma", "norm 2 beta", c.width),
        down_bias_(to.add(part, "mlp down bias", c.width, 0.0F, 0.0F)) {
    index width = 0;
    index hidden = 0;
    for (index m = members.first; m < members.last; ++m) {
      shares_.emplace_back(c, part, m, width, hidden, to);
      width = shares_.back().width.last;
      hidden = shares_.back().hidden.last;
    }
  }

  /// @return floats of scratch memory that its passes need
  [[nodiscard]] index scratch() const {
    auto const rows = c_.tokens() * c_.width;
    return std::max(
        {c_.tokens() * shares_.back().hidden.last,
         rows + attention_.scratch(),
         c_.members > 1 ? 2 * rows : rows});
  }

  void forward(
      parameter_set const& p, saved s, input x, float* scratch, view y, member_sum const& sum)
      const {
    auto normed = as_matrix(scratch, c_.tokens(), c_.width);
    norm_1_.forward(p, x, s.normal_1, s.scale_1, normed);
    for (auto const& own : shares_) {
      own.qkv.forward(p, normed, own.qkv_in(s));
      attention_.forward(own.qkv_in(s), own.probabilities_in(s), own.mixed_in(s));
    }
    y = x;
    out_bias_.forward_add(p, y);
    add_products(
        p, &share::out, [&](share const& own) { return own.mixed_in(s); }, normed, y, sum);
    norm_2_.forward(p, y, s.normal_2, s.scale_2, normed);
    for (auto const& own : shares_) own.up.forward(p, normed, own.hidden_in(s.hidden));
    gelu::forward(s.hidden.size(), s.hidden.data(), s.active.data());
    down_bias_.forward_add(p, y);
    add_products(
        p, &share::down, [&](share const& own) { return own.hidden_in(s.active); }, normed, y, sum);
  }

  void backward_input(
      parameter_set const& p, saved s, input dy, float* scratch, view dx, member_sum const& sum)
      const {
    auto dactive = as_matrix(scratch, c_.tokens(), s.hidden.cols());
    for (auto const& own : shares_) own.down.backward_input(p, dy, own.hidden_in(dactive));
    gelu::backward_input_in_place(s.hidden.size(), dactive.data(), s.hidden.data());
    add_up(
        [&](share const& own, view to) { own.up.backward_input(p, own.hidden_in(s.hidden), to); },
        s.dnorm_2,
        scratch,
        sum);
    s.dmiddle = dy;
    norm_2_.backward_input_add(p, s.dnorm_2, s.normal_2, s.scale_2, s.dmiddle);
    auto dmixed = as_matrix(scratch, c_.tokens(), s.mixed.cols());
    for (auto const& own : shares_) {
      auto const rows = columns(dmixed, own.width);
      own.out.backward_input(p, s.dmiddle, rows);
      attention_.backward_input_in_place(
          rows, own.probabilities_in(s), scratch + dmixed.size(), own.qkv_in(s));
    }
    add_up(
        [&](share const& own, view to) { own.qkv.backward_input(p, own.qkv_in(s), to); },
        s.dnorm_1,
        scratch,
        sum);
    dx = s.dmiddle;
    norm_1_.backward_input_add(p, s.dnorm_1, s.normal_1, s.scale_1, dx);
  }

  void backward_weight(parameter_set& p, saved const& s, input dy, float* scratch) const {
    auto normed = as_matrix(scratch, c_.tokens(), c_.width);
    for (auto const& own : shares_) own.down.backward_weight(p, own.hidden_in(s.active), dy);
    down_bias_.backward_weight(p, dy);
    norm_2_.forward_again(p, s.normal_2, normed);
    for (auto const& own : shares_) own.up.backward_weight(p, normed, own.hidden_in(s.hidden));
    norm_2_.backward_weight(p, s.normal_2, s.dnorm_2);
    for (auto const& own : shares_) own.out.backward_weight(p, own.mixed_in(s), s.dmiddle);
    out_bias_.backward_weight(p, s.dmiddle);
    norm_1_.forward_again(p, s.normal_1, normed);
    for (auto const& own : shares_) own.qkv.backward_weight(p, normed, own.qkv_in(s));
    norm_1_.backward_weight(p, s.normal_1, s.dnorm_1);
  }

 private:
  [[nodiscard]] static view columns(view all, range of) {
    auto* const first = &all.coeffRef(0, of.first);
    return {first, all.rows(), of.last - of.first, Eigen::OuterStride<>(all.outerStride())};
  }

  // Is what a member has: some heads, and some hidden units.
  struct share {
    range width;   // of its heads, among those here
    range hidden;  // of its units, among those here
    linear qkv;    // the rows of its heads
    product out;   // the columns of its heads
    linear up;     // the rows of its units
    product down;  // the columns of its units

    share(
        model_config const& c,
        index part,
        index member,
        index first_width,
        index first_hidden,
        parameter_set& to)
        : share(c, part, member, heads_of(c, member), units_of(c, member), to) {
      width = {first_width, first_width + width.last - width.first};
      hidden = {first_hidden, first_hidden + hidden.last - hidden.first};
    }

    [[nodiscard]] view qkv_in(saved const& s) const {
      return columns(s.qkv, {3 * width.first, 3 * width.last});
    }
    [[nodiscard]] view mixed_in(saved const& s) const { return columns(s.mixed, width); }
    [[nodiscard]] view hidden_in(view all) const { return columns(all, hidden); }
    [[nodiscard]] view probabilities_in(saved s) const {
      auto const tokens = s.mixed.rows();
      return as_matrix(
          &s.probabilities.coeffRef(width.first / head_width * tokens, 0),
          (width.last - width.first) / head_width * tokens,
          s.probabilities.cols());
    }

   private:
    // Of the whole model.
    [[nodiscard]] static range heads_of(model_config const& c, index member) {
      auto const heads = part_of(c.heads(), c.members, member);
      return {heads.first * head_width, heads.last * head_width};
    }
    [[nodiscard]] static range units_of(model_config const& c, index member) {
      return part_of(c.hidden(), c.members, member);
    }
    share(model_config const& c, index part, index m, range heads, range units, parameter_set& to)
        : width(heads),
          hidden(units),
          qkv(product(
                  to.add_share(part, "qkv weight", {3, c.width, c.width}, 1, heads, m, spread(c)),
                  c.width,
                  3 * (heads.last - heads.first)),
              to.add_share(part, "qkv bias", {3, c.width}, 1, heads, m, 0.0F)),
          out(to.add_share(
                  part, "attention out weight", {c.width, c.width}, 1, heads, m, branch(c)),
              heads.last - heads.first,
              c.width),
          up(product(
                 to.add_share(part, "mlp up weight", {c.hidden(), c.width}, 0, units, m, spread(c)),
                 c.width,
                 units.last - units.first),
             to.add_share(part, "mlp up bias", {c.hidden()}, 0, units, m, 0.0F)),
          down(
              to.add_share(
                  part, "mlp down weight", {c.width, c.hidden()}, 1, units, m, branch(c) / 2.0F),
              units.last - units.first,
              c.width) {}
  };

  // Adds up over all members what `make` writes for each, in their order.
  template <class Make>
  void add_up(Make const& make, view all, float* scratch, member_sum const& sum) const {
    make(shares_.front(), all);
    auto one = as_matrix(scratch, all.rows(), all.cols());
    for (auto own = shares_.begin() + 1; own != shares_.end(); ++own) {
      make(*own, one);
      all += one;
    }
    if (sum) sum({all.data(), static_cast<std::size_t>(all.size())});
  }
  // Adds a product of each member to y.
  // @param rows  scratch for all of them
  template <class RowsOf>
  void add_products(
      parameter_set const& p,
      product share::*weight,
      RowsOf const& rows_of,
      view rows,
      view y,
      member_sum const& sum) const {
    auto const& first = shares_.front();
    if (c_.members == 1) return (first.*weight).forward_add(p, rows_of(first), y);
    add_up(
        [&](share const& own, view to) { (own.*weight).forward(p, rows_of(own), to); },
        rows,
        rows.data() + rows.size(),
        sum);
    y += rows;
  }

  [[nodiscard]] static float spread(model_config const& c) {
    return 1.0F / std::sqrt(static_cast<float>(c.width));
  }
  // Branches are added to the stream 2 * layers times; this keeps the sum's size.
  [[nodiscard]] static float branch(model_config const& c) {
    return spread(c) / std::sqrt(2.0F * static_cast<float>(c.layers));
  }

  model_config c_;
  attention attention_;
  layer_norm norm_1_;
  bias out_bias_;
  layer_norm norm_2_;
  bias down_bias_;
  std::vector<share> shares_;  // of the members here
};

/// Deviation of what a table of tokens starts with.
constexpr float table_deviation = 0.02F;

/// Is the sum of a token's row and a position's row: batch -> rows.
class embedding {
 public:
  embedding(model_config const& c, index part, parameter_set& to)
      : c_(c),
        token_(
            c.is_tied ? to.add_tied(part, name, c.words * c.width, table_deviation)
                      : to.add(part, name, c.words * c.width, 0.0F, table_deviation)),
        position_(to.add(part, "position table", c.context * c.width, 0.0F, table_deviation)) {}

  void forward(parameter_set const& p, batch const& of, view y) const {
    auto const tokens = as_matrix(p.value(token_), c_.words, c_.width);
    auto const positions = as_matrix(p.value(position_), c_.context, c_.width);
    for (index b = 0; b < c_.sequences; ++b) {
      auto const* const token = of.tokens(b);
      for (index t = 0; t < c_.context; ++t)
        y.row(b * c_.context + t) = tokens.row(token[t]) + positions.row(t);
    }
  }
  void backward_weight(parameter_set& p, batch const& of, input dy) const {
    auto tokens = as_matrix(p.gradient(token_), c_.words, c_.width);
    auto positions = as_matrix(p.gradient(position_), c_.context, c_.width);
    for (index b = 0; b < c_.sequences; ++b) {
      auto const* const token = of.tokens(b);
      for (index t = 0; t < c_.context; ++t) {
        tokens.row(token[t]) += dy.row(b * c_.context + t);
        positions.row(t) += dy.row(b * c_.context + t);
      }
    }
  }

 private:
  static constexpr char const* name = "token table";

  model_config c_;
  parameter token_, position_;
};

/// Is a shard of the head: the logits of some of the words, behind the last norm in the first one.
/// Its rows go from shard to shard, and with them the sums of the softmax over the shards so far.
/// The last shard has the loss, and its sums go back with the gradients.
/// @source arXiv 2411.05288, where the shards meet in barriers and form no chain; arXiv 1805.02867
///         sec. 3.1 for the sums
class head {
 public:
  /// Names the sums of a token: the largest logit, the sum of e^(logit - largest), and the logit of
  /// the target, 0 before its shard; and counts them.
  enum sum_of : index { largest_logit, mass, target_logit, sums };

  /// Sees what a microbatch keeps in the shard.
  struct saved {
    view scale;         // of the norm, until B
    view largest;       // of the logits of each token, until B
    view softmax;       // sums of each token over the shards so far, until B
    view normal;        // of the norm, and in shards after the first what came in, until W
    view exponentials;  // of the logits less `largest`, until W; B makes them the gradient
    view dnorm;         // from B until W

    saved(model_config const& c, bool is_first, index words, cutters& from)
        : scale(from.until_b.take(is_first ? c.tokens() : 0, 1)),
          largest(from.until_b.take(c.tokens(), 1)),
          softmax(from.until_b.take(c.tokens(), sums)),
          normal(from.until_w.take(c.tokens(), c.width)),
          exponentials(from.until_w.take(c.tokens(), words)),
          dnorm(from.gradients.take(is_first ? c.tokens() : 0, c.width)) {}
  };
  /// Cuts what a microbatch keeps.
  [[nodiscard]] saved saved_in(cutters& from) const {
    return {c_, norm_.has_value(), words_.last - words_.first, from};
  }

  /// Adds its parameters to a set.
  /// @param part  of the first shard; the others follow
  head(model_config const& c, index part, index shard, parameter_set& to)
      : c_(c),
        words_(part_of(c.words, c.shards, shard)),
        norm_(
            shard == 0
                ? std::optional(layer_norm(to, part, "last norm gamma", "last norm beta", c.width))
                : std::nullopt),
        logits_(
            product(add_weight(to, part, shard), c.width, words_.last - words_.first),
            to.add(part + shard, "head bias", words_.last - words_.first, 0.0F, 0.0F)) {}

  /// @return floats of scratch memory that its passes need
  [[nodiscard]] index scratch() const { return norm_ ? c_.tokens() * c_.width : 0; }

  /// @param before  sums over the shards before; null in the first
  /// @param y       gets the rows for the next shard, in the last one, too
  void forward(
      parameter_set const& p, saved s, batch const& of, input x, float const* before, view y)
      const {
    if (norm_)
      norm_->forward(p, x, s.normal, s.scale, y);
    else
      y = s.normal = x;
    logits_.forward(p, y, s.exponentials);
    for_each_token(of, [&](index r, index target) {
      auto logits = s.exponentials.row(r);
      auto all = s.softmax.row(r);
      all[target_logit] = has(target) ? logits[target - words_.first] : 0.0F;
      all[largest_logit] = exponentials_in_place(logits.data(), logits.size());
      all[mass] = sum(logits);
      s.largest.row(r)[0] = all[largest_logit];
      if (before != nullptr) add(before + r * sums, all.data());
    });
  }
  /// @return of the last shard, the mean over tokens of the cross-entropy, in nats
  [[nodiscard]] double loss(saved const& s) const {
    double total = 0.0;
    for (index b = 0; b < c_.sequences; ++b) {
      double of_sequence = 0.0;
      for (index t = 0; t < c_.context; ++t) {
        auto const all = s.softmax.row(b * c_.context + t);
        of_sequence += std::log(static_cast<double>(all[mass])) -
                       static_cast<double>(all[target_logit] - all[largest_logit]);
      }
      total += of_sequence;
    }
    return total / static_cast<double>(c_.tokens());
  }

  /// Makes the gradient of the loss divided by `microbatches`.
  /// @param softmax  sums over all shards
  /// @param dy       null in the last shard
  void backward_input(
      parameter_set const& p,
      saved s,
      batch const& of,
      int microbatches,
      float const* softmax,
      float const* dy,
      view dx) const {
    auto const share = 1.0F / (static_cast<float>(microbatches) * static_cast<float>(c_.tokens()));
    for_each_token(of, [&](index r, index target) {
      auto const* const all = softmax + r * sums;
      auto dlogits = s.exponentials.row(r);
      dlogits *= share / all[mass] * exponential(s.largest.row(r)[0] - all[largest_logit]);
      if (has(target)) dlogits[target - words_.first] -= share;
    });
    auto dnormed = norm_ ? s.dnorm : dx;
    logits_.backward_input(p, s.exponentials, dnormed);
    if (dy != nullptr) dnormed += as_matrix(dy, c_.tokens(), c_.width);
    if (!norm_) return;
    dx.setZero();
    norm_->backward_input_add(p, s.dnorm, s.normal, s.scale, dx);
  }
  void backward_weight(parameter_set& p, saved const& s, float* scratch) const {
    if (!norm_) return logits_.backward_weight(p, s.normal, s.exponentials);
    auto normed = as_matrix(scratch, c_.tokens(), c_.width);
    norm_->forward_again(p, s.normal, normed);
    logits_.backward_weight(p, normed, s.exponentials);
    norm_->backward_weight(p, s.normal, s.dnorm);
  }

 private:
  [[nodiscard]] parameter add_weight(parameter_set& to, index part, index shard) const {
    auto const size = (words_.last - words_.first) * c_.width;
    if (c_.is_tied) return to.add_tied(part, "head weight", size, table_deviation);
    auto const deviation = 1.0F / std::sqrt(static_cast<float>(c_.width)) / 4.0F;
    return to.add_elements(
        part + shard, part, "head weight", words_.first * c_.width, size, deviation);
  }
  [[nodiscard]] bool has(index word) const { return words_.first <= word && word < words_.last; }

  template <class Work>
  void for_each_token(batch const& of, Work const& work) const {
    for (index b = 0; b < c_.sequences; ++b) {
      auto const* const target = of.targets(b);
      for (index t = 0; t < c_.context; ++t) work(b * c_.context + t, target[t]);
    }
  }
  /// Adds the sums of a token over other words.
  static void add(float const* others, float* all) {
    float const top = std::max(others[largest_logit], all[largest_logit]);
    all[mass] = others[mass] * exponential(others[largest_logit] - top) +
                all[mass] * exponential(all[largest_logit] - top);
    all[target_logit] += others[target_logit];
    all[largest_logit] = top;
  }

  model_config c_;
  range words_;
  std::optional<layer_norm> norm_;
  linear logits_;
};

/// Counts what a microbatch takes in a layer.
template <class Layer>
[[nodiscard]] footprint footprint_of(Layer const& layer) {
  cutters count{cutter(nullptr), cutter(nullptr), cutter(nullptr)};
  static_cast<void>(layer.saved_in(count));
  return {count.until_b.used(), count.until_w.used(), count.gradients.used(), layer.scratch()};
}

}  // namespace

/// Holds the layers of a chunk. What a microbatch keeps of them lies layer by layer.
struct chunk::layers {
  std::optional<embedding> first;
  std::vector<block> blocks;
  std::vector<head> shards;
  footprint all;                 // of the layers: what they keep, and the most scratch
  std::vector<footprint> begin;  // of each layer in what is kept

  template <class Layer>
  void add(std::vector<Layer>& to, Layer&& layer) {
    auto const own = footprint_of(layer);
    begin.push_back(all);
    all.until_b += own.until_b;
    all.until_w += own.until_w;
    all.gradients += own.gradients;
    all.scratch = std::max(all.scratch, own.scratch);
    to.push_back(std::move(layer));
  }

  [[nodiscard]] index block_count() const { return std::ssize(blocks); }
  [[nodiscard]] index count() const { return std::ssize(begin); }
  [[nodiscard]] block const& block_at(index i) const { return blocks[static_cast<std::size_t>(i)]; }
  [[nodiscard]] head const& shard_at(index i) const {
    return shards[static_cast<std::size_t>(i - block_count())];
  }
  /// @return what a microbatch keeps in layer i of the chunk
  template <class Layer>
  [[nodiscard]] typename Layer::saved saved_at(
      Layer const& layer, kept const& keep, index i) const {
    auto const piece = [](float* first_kept, index offset) {
      return cutter(first_kept == nullptr ? nullptr : first_kept + offset);
    };
    auto const& at = begin[static_cast<std::size_t>(i)];
    cutters from{
        piece(keep.until_b, at.until_b),
        piece(keep.until_w, at.until_w),
        piece(keep.gradients, at.gradients)};
    return layer.saved_in(from);
  }
};

chunk::chunk(
    model_config const& config, range part, int microbatches, std::uint64_t seed, range members)
    : config_(config),
      range_(part),
      microbatches_(microbatches),
      parameters_(seed, config.members > 1),
      layers_(std::make_unique<layers>()) {
  auto& own = *layers_;
  if (is_first()) own.first.emplace(config_, 0, parameters_);
  for (index i = range_.first; i < std::min(range_.last, config_.layers); ++i)
    own.add(own.blocks, block(config_, i + 1, members, parameters_));
  for (index i = std::max(range_.first, config_.layers); i < range_.last; ++i)
    own.add(own.shards, head(config_, config_.layers + 1, i - config_.layers, parameters_));

  auto const rows = whole_lines(row_floats());
  keeps_ = own.all;
  // The gradient that goes into each layer lies there too, but for the one that comes in.
  keeps_.gradients += (own.count() - (is_first() ? 0 : 1)) * rows;
  // Rows between layers during F, beside the scratch of the layers.
  keeps_.scratch += 2 * rows;
}

chunk::chunk(chunk&&) noexcept = default;
chunk& chunk::operator=(chunk&&) noexcept = default;
chunk::~chunk() = default;

bool chunk::is_first() const { return range_.first == 0; }
bool chunk::is_last() const { return range_.last == config_.layers + config_.shards; }

index chunk::floats_in() const { return floats_before(range_.first); }
index chunk::floats_out() const { return floats_before(range_.last); }
index chunk::floats_before(index layer) const {
  auto const is_between = config_.layers < layer && layer < config_.layers + config_.shards;
  return row_floats() + (is_between ? config_.tokens() * head::sums : 0);
}

bool chunk::uses_gradient_in_w() const { return layers_->shards.empty(); }

double chunk::forward(
    kept const& keep,
    batch const& of,
    float const* x,
    float* scratch,
    float* y,
    member_sum const& sum) const {
  auto const& own = *layers_;
  auto const rows = [&](auto* from) { return as_matrix(from, config_.tokens(), config_.width); };
  // What shards add up to lies behind their rows.
  float const* softmax = floats_in() > row_floats() ? x + row_floats() : nullptr;
  cutter cut(scratch);
  auto* here = cut.take(config_.tokens(), config_.width).data();
  auto* next = cut.take(config_.tokens(), config_.width).data();
  auto* const rest = scratch + cut.used();
  if (own.first) {
    own.first->forward(parameters_, of, rows(here));
    x = here;
  }
  for (index i = 0; i < own.count(); ++i) {
    auto* const out = i + 1 == own.count() && !is_last() ? y : next;
    if (i < own.block_count()) {
      auto const saved = own.saved_at(own.block_at(i), keep, i);
      own.block_at(i).forward(parameters_, saved, rows(x), rest, rows(out), sum);
    } else {
      auto const saved = own.saved_at(own.shard_at(i), keep, i);
      own.shard_at(i).forward(parameters_, saved, of, rows(x), softmax, rows(out));
      softmax = saved.softmax.data();
    }
    x = out;
    std::swap(here, next);
  }
  if (is_last()) {
    auto const i = own.count() - 1;
    return own.shard_at(i).loss(own.saved_at(own.shard_at(i), keep, i));
  }
  if (floats_out() > row_floats())
    std::copy_n(softmax, config_.tokens() * head::sums, y + row_floats());
  return 0.0;
}

float* chunk::gradient_into(kept const& keep, index i) const {
  return keep.gradients + layers_->all.gradients +
         (i - (is_first() ? 0 : 1)) * whole_lines(row_floats());
}

void chunk::backward_input(
    kept const& keep,
    batch const& of,
    float const* dy,
    float* scratch,
    float* dx,
    member_sum const& sum) const {
  auto const& own = *layers_;
  auto const rows = [&](auto* from) { return as_matrix(from, config_.tokens(), config_.width); };
  float const* softmax = floats_out() > row_floats() ? dy + row_floats() : nullptr;
  for (index i = own.count() - 1; i >= 0; --i) {
    auto* const out = i == 0 && !is_first() ? dx : gradient_into(keep, i);
    if (i < own.block_count()) {
      auto const saved = own.saved_at(own.block_at(i), keep, i);
      own.block_at(i).backward_input(parameters_, saved, rows(dy), scratch, rows(out), sum);
    } else {
      auto const saved = own.saved_at(own.shard_at(i), keep, i);
      if (softmax == nullptr) softmax = saved.softmax.data();
      own.shard_at(i).backward_input(parameters_, saved, of, microbatches_, softmax, dy, rows(out));
    }
    dy = out;
  }
  if (floats_in() > row_floats())
    std::copy_n(softmax, config_.tokens() * head::sums, dx + row_floats());
}

void chunk::backward_weight(kept const& keep, batch const& of, float const* dy, float* scratch) {
  auto const& own = *layers_;
  auto const rows = [&](auto* from) { return as_matrix(from, config_.tokens(), config_.width); };
  for (index i = own.count() - 1; i >= 0; --i) {
    if (i < own.block_count()) {
      auto const saved = own.saved_at(own.block_at(i), keep, i);
      own.block_at(i).backward_weight(parameters_, saved, rows(dy), scratch);
    } else {
      own.shard_at(i).backward_weight(parameters_, own.saved_at(own.shard_at(i), keep, i), scratch);
    }
    if (i > 0 || is_first()) dy = gradient_into(keep, i);
  }
  if (own.first) own.first->backward_weight(parameters_, of, rows(dy));
}

}  // namespace gpt

# Figures of the documentation, from the CSV files beside this one; run in this folder by ./dev doc:
# gnuplot -e "out='FOLDER'" plots.gp
set terminal svg size 760,420 font "sans-serif,13" background "white"
set datafile separator ","
set key outside right center reverse Left samplen 2
set grid ytics lc rgb "#dddddd"
recipes = "qk4v8 mxkv4 kv4 k4v8 kv8"

set output out."/accuracy.svg"
set title "Error of attention on Gemma 3 270M, layer 11, against fp64"
set xlabel "tokens in the cache"
set ylabel "relative L2 error"
set logscale x 2
set logscale y
set yrange [0.005:0.5]
plot for [r in recipes] "<grep '^capture,11,[0-9]*,".r.",' accuracy.csv" using 3:5 with linespoints lw 2 title r

set output out."/layers.svg"
set title "The same at 2048 tokens, by layer"
set xlabel "layer"
unset logscale
set xrange [3:19]
set yrange [0:*]
set xtics (5, 11, 17)
plot for [r in recipes] "<grep '^capture,[0-9]*,2048,".r.",' accuracy.csv" using 2:5 with linespoints lw 2 title r

set output out."/speed.svg"
set title "Decode step on one core, fastest instructions: 32 query heads, 8 kv heads of 128"
set xlabel "tokens in the cache"
set ylabel "ns per cached token and kv head"
set logscale x 2
set xrange [*:*]
set xtics auto
set yrange [0:*]
cost = "($4 * 1e6 / $3 / 8)" # from ms
plot for [r in recipes] "<grep '^".r.",' speed.csv | awk -F, 'NR == 1 { isa = $2 } $2 == isa'" \
  using 3:@cost with linespoints lw 2 title r

set output out."/isa.svg"
set title "The same for kv4, by instruction set"
set logscale y
set yrange [*:*]
plot for [i in "scalar avx2 avx512"] "<grep '^kv4,".i.",' speed.csv || echo 'kv4,none,NaN,NaN'" \
  using 3:@cost with linespoints lw 2 title i

reset
set terminal svg size 760,420 font "sans-serif,13" background "white"
set datafile separator ","
set output out."/memory.svg"
set title "Cache of 131072 tokens, 32 layers, 8 kv heads of 128"
set ylabel "GiB"
set style fill solid 0.8
set boxwidth 0.6
set yrange [0:*]
set grid ytics lc rgb "#dddddd"
unset key
plot "memory.csv" using 0:($2/1024**3):xtic(1) every ::1 with boxes lc rgb "#4477aa", \
  "" using 0:($2/1024**3 + 0.6):(sprintf("%.1f", $2/1024**3)) every ::1 with labels

# What ./dev eval measured (docs/accuracy.md): bits against divergence, by position, by layer, by length.
reset
set terminal svg size 860,480 font "sans-serif,12" background "white"
set datafile separator ","
set datafile columnheaders
set grid lc rgb "#dddddd"
set logscale y
set output out."/pareto.svg"
set title "Gemma 3 270M, 1024 tokens of prose: divergence from the unquantized model against bits"
set xlabel "bits per element of K and V"
set ylabel "KL divergence (nats)"
set xrange [4:8.9]
unset key
# A quoted policy has commas, which labels do not survive.
scores = "<sed ':a;s/\"\\([^\",]*\\),\\([^\"]*\\)\"/\"\\1 \\2\"/;ta' eval-perplexity.csv"
is_whole(t, n, f) = t eq "prose" && n == 1024 && f == 0
is_decoded(t, n, f) = t eq "prose" && n == 1024 && f == 512
plot scores using (is_whole(strcol("text"), column("length"), column("first")) ? column("bits") : 1/0):"kl" \
  with points pt 7 ps 0.6 lc rgb "#4477aa", \
  "" using (is_whole(strcol("text"), column("length"), column("first")) ? column("bits") + 0.05 : 1/0):"kl":(strcol("policy")) \
  with labels left noenhanced font ",9", \
  "" using (is_decoded(strcol("text"), column("length"), column("first")) ? column("bits") : 1/0):"kl" \
  with points pt 5 ps 0.7 lc rgb "#ee6677", \
  "" using (is_decoded(strcol("text"), column("length"), column("first")) ? column("bits") + 0.05 : 1/0):"kl":(strcol("policy")) \
  with labels left noenhanced font ",9" tc rgb "#ee6677"

set output out."/eval-layers.svg"
set title "Error of attention by layer, 1024 tokens (5, 11 and 17 are global, the others see 512 keys)"
set xlabel "layer"
set ylabel "relative L2 error"
set xrange [-0.5:17.5]
set xtics 1
set key outside right center reverse Left samplen 2
plot for [r in "qk4v8 mxkv4 kv4 k4v8 kv8"] "eval-layers.csv" \
  using (strcol("recipe") eq r ? column("layer") : 1/0):"rel_l2" with linespoints lw 2 title r

set output out."/eval-kernel.svg"
set title "Error of attention by length: captured layer 11 over and over, and sinks"
set xlabel "tokens in the cache"
set xrange [1500:180000]
set logscale x 2
set xtics auto
plot for [r in "qk4v8 mxkv4 kv4 k4v8 kv8"] "eval-kernel.csv" \
  using (strcol("recipe") eq r && strcol("source") eq "capture" ? column("length") : 1/0):"rel_l2" \
  with linespoints lw 2 title r, \
  for [r in "mxkv4 kv4 kv8"] "eval-kernel.csv" \
  using (strcol("recipe") eq r && strcol("source") eq "sinks" ? column("length") : 1/0):"rel_l2" \
  with linespoints lw 1 dt 2 title r.", sinks"

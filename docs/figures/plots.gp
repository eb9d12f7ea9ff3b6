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

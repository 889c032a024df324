package dbspark.peer;

import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Where the sources and sinks of one job meet; all of them are in one JVM. The desk is known by the file that it writes in the end.
 *
 * <p>Ticks: the sources wait for a tick to be released; it is over when nothing has reached the sinks for a while after the last
 * source has sent its rows, and took until the last row that did. A stream has one tick, and is over when the sinks are closed.
 */
final class Desk {
    private static final Map<String, Desk> DESKS = new ConcurrentHashMap<>();

    private final String path;
    private final Map<String, Integer> view = new ConcurrentHashMap<>();
    private final Map<String, String> latest = new ConcurrentHashMap<>();
    private final List<String> lines = new ArrayList<>();
    private int sources, sinks, sent, released = -1;
    private long begun;
    private final AtomicLong changes = new AtomicLong();
    private volatile long last;

    private Desk(String path) {
        this.path = path;
    }

    static Desk of(String path) {
        return DESKS.computeIfAbsent(path, Desk::new);
    }

    /** A source has its rows at hand; the last of them starts the first tick. */
    synchronized void ready(int expected, int ticks, long quietMs, long loadQuietMs) {
        sources++;
        if (sources == expected) {
            if (ticks == 0) {
                release(0);
            } else {
                Thread clock = new Thread(() -> run(expected, ticks, quietMs, loadQuietMs), "ticks");
                clock.setDaemon(true);
                clock.start();
            }
        }
    }

    synchronized void awaitTick(int tick) throws InterruptedException {
        while (released < tick) {
            wait();
        }
    }

    synchronized void sent() {
        sent++;
        notifyAll();
    }

    private synchronized void release(int tick) {
        sent = 0;
        released = tick;
        begun = System.nanoTime();
        notifyAll();
    }

    private synchronized void awaitSent(int expected) throws InterruptedException {
        while (sent < expected) {
            wait();
        }
    }

    private void run(int expected, int ticks, long quietMs, long loadQuietMs) {
        try {
            for (int tick = 0; tick <= ticks; tick++) {
                long before = changes.get();
                release(tick);
                awaitSent(expected);
                long since = System.nanoTime();
                long quiet = 1_000_000L * (tick == 0 ? loadQuietMs : quietMs);
                while (System.nanoTime() < Math.max(last, since) + quiet) {
                    Thread.sleep(1);
                }
                lines.add("tick\t" + tick + "\t" + (changes.get() == before ? -1 : last - begun));
                for (Map.Entry<String, Integer> row : view.entrySet()) {
                    lines.add("row\t" + tick + "\t" + row.getValue() + "\t" + row.getKey());
                }
            }
            write();
            release(Integer.MAX_VALUE);
        } catch (Exception e) {
            e.printStackTrace();
        }
    }

    private void write() {
        try (PrintWriter out = new PrintWriter(path, "UTF-8")) {
            lines.forEach(out::println);
        } catch (java.io.IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }

    synchronized void opened() {
        sinks++;
    }

    synchronized void closed(boolean stream) {
        sinks--;
        if (sinks == 0 && stream) {
            lines.add("tick\t0\t" + (System.nanoTime() - begun));
            latest.values().forEach(row -> lines.add("row\t0\t1\t" + row));
            view.forEach((row, count) -> lines.add("row\t0\t" + count + "\t" + row));
            write();
        }
    }

    /** The row of a key is another one now, or none (null). Rows of a key come through one sink, in their order. */
    void replaced(String key, String row) {
        latest.compute(key, (k, old) -> row);
        last = System.nanoTime();
    }

    /** A change has reached a sink; {@code row} is null if nobody wants to know what it was. */
    void changed(String row, int weight) {
        if (row != null) {
            view.merge(row, weight, (a, b) -> a + b == 0 ? null : Integer.valueOf(a + b));
        }
        changes.incrementAndGet();
        last = System.nanoTime();
    }
}

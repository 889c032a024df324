package dbspark.peer;

import org.apache.flink.streaming.api.functions.source.legacy.RichSourceFunction;
import org.apache.flink.table.data.RowData;

/** A table whose rows come tick by tick. */
public final class Rows extends RichSourceFunction<RowData> {
    private final String file, desk;
    private final int sources, ticks;
    private final long quietMs, loadQuietMs;
    private volatile boolean running = true;

    Rows(String file, String desk, int sources, int ticks, long quietMs, long loadQuietMs) {
        this.file = file;
        this.desk = desk;
        this.sources = sources;
        this.ticks = ticks;
        this.quietMs = quietMs;
        this.loadQuietMs = loadQuietMs;
    }

    @Override
    public void run(SourceContext<RowData> out) throws Exception {
        Columns columns = new Columns(file);
        Desk meeting = Desk.of(desk);
        meeting.ready(sources, ticks, quietMs, loadQuietMs);
        int row = 0;
        for (int tick = 0; tick <= ticks && running; tick++) {
            meeting.awaitTick(tick);
            // A stream is one tick: its cuts are for those who can be asked when a batch is done.
            int end = ticks == 0 ? columns.cuts[columns.cuts.length - 1] : columns.cuts[tick + 1];
            for (; row < end && running; row++) {
                synchronized (out.getCheckpointLock()) {
                    out.collect(columns.row(row));
                }
            }
            meeting.sent();
        }
        if (ticks > 0) {
            meeting.awaitTick(Integer.MAX_VALUE);
        }
    }

    @Override
    public void cancel() {
        running = false;
    }
}

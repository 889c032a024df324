package dbspark.peer;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Paths;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.data.binary.BinaryStringData;
import org.apache.flink.types.RowKind;

/**
 * A table in columns, as {@code benchmarks.peers.systems.flink} writes it, big-endian: the number of cuts and the cuts (the rows
 * of tick i are those from cut i to cut i + 1), the number of columns, whether the last one is a weight, and for each column
 * its kind and its values. Strings are offsets and bytes; a row's string is a view of them, nothing is copied.
 */
final class Columns {
    private static final int LONG = 0, STRING = 1, TIME = 2, INT = 3;

    final int[] cuts;
    private final int width;
    private final boolean weighted;
    private final int[] kinds;
    private final long[][] numbers;
    private final int[][] offsets;
    private final byte[][] bytes;

    Columns(String path) throws IOException {
        try (FileChannel channel = FileChannel.open(Paths.get(path))) {
            ByteBuffer in = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
            cuts = ints(in, in.getInt());
            width = in.getInt();
            weighted = in.getInt() == 1;
            kinds = new int[width];
            numbers = new long[width][];
            offsets = new int[width][];
            bytes = new byte[width][];
            int rows = cuts[cuts.length - 1];
            for (int c = 0; c < width; c++) {
                kinds[c] = in.getInt();
                if (kinds[c] == STRING) {
                    offsets[c] = ints(in, rows + 1);
                    bytes[c] = new byte[offsets[c][rows]];
                    in.get(bytes[c]);
                } else {
                    numbers[c] = new long[rows];
                    in.asLongBuffer().get(numbers[c]);
                    in.position(in.position() + 8 * rows);
                }
            }
        }
    }

    private static int[] ints(ByteBuffer in, int count) {
        int[] out = new int[count];
        in.asIntBuffer().get(out);
        in.position(in.position() + 4 * count);
        return out;
    }

    GenericRowData row(int i) {
        int columns = weighted ? width - 1 : width;
        boolean goes = weighted && numbers[width - 1][i] < 0;
        GenericRowData row = new GenericRowData(goes ? RowKind.DELETE : RowKind.INSERT, columns);
        for (int c = 0; c < columns; c++) {
            row.setField(c, value(c, i));
        }
        return row;
    }

    private Object value(int c, int i) {
        switch (kinds[c]) {
            case LONG:
                return numbers[c][i];
            case INT:
                return (int) numbers[c][i];
            case TIME:
                return TimestampData.fromEpochMillis(numbers[c][i]);
            default:
                return BinaryStringData.fromBytes(bytes[c], offsets[c][i], offsets[c][i + 1] - offsets[c][i]);
        }
    }
}

package dbspark.peer;

import java.util.List;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.streaming.api.functions.sink.legacy.RichSinkFunction;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.types.RowKind;

/** Takes the changes of a view, and keeps its rows if they are wanted. */
public final class View extends RichSinkFunction<RowData> {
    private final String desk;
    private final boolean stream, wanted;
    private final int key;
    private final List<LogicalType> types;
    private transient Desk meeting;
    private transient RowData.FieldGetter[] fields;

    View(String desk, boolean stream, boolean wanted, int key, List<LogicalType> types) {
        this.desk = desk;
        this.stream = stream;
        this.wanted = wanted;
        this.key = key;
        this.types = types;
    }

    @Override
    public void open(OpenContext context) {
        meeting = Desk.of(desk);
        meeting.opened();
        fields = new RowData.FieldGetter[types.size()];
        for (int i = 0; i < fields.length; i++) {
            fields[i] = RowData.createFieldGetter(types.get(i), i);
        }
    }

    @Override
    public void invoke(RowData row, Context context) {
        RowKind kind = row.getRowKind();
        int weight = kind == RowKind.INSERT || kind == RowKind.UPDATE_AFTER ? 1 : -1;
        if (wanted && key > 0) {
            meeting.replaced(text(row, key), weight > 0 ? text(row, fields.length) : null);
        } else {
            meeting.changed(wanted ? text(row, fields.length) : null, weight);
        }
    }

    private String text(RowData row, int columns) {
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < columns; i++) {
            Object value = fields[i].getFieldOrNull(row);
            out.append(out.length() == 0 ? "" : "\t");
            out.append(value instanceof TimestampData ? ((TimestampData) value).getMillisecond() : value);
        }
        return out.toString();
    }

    @Override
    public void close() {
        meeting.closed(stream);
    }
}

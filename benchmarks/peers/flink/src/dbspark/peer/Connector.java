package dbspark.peer;

import java.util.Set;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.legacy.table.connector.source.SourceFunctionProvider;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.sink.legacy.SinkFunctionProvider;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.factories.DynamicTableSinkFactory;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.types.RowKind;

/** The connector `dbspark-peer`: tables from files in this JVM, ticks, and a view that is taken note of. */
public final class Connector implements DynamicTableSourceFactory, DynamicTableSinkFactory {
    private static final ConfigOption<String> FILE = ConfigOptions.key("file").stringType().defaultValue("");
    private static final ConfigOption<String> DESK = ConfigOptions.key("desk").stringType().noDefaultValue();
    private static final ConfigOption<Integer> SOURCES = ConfigOptions.key("sources").intType().defaultValue(1);
    private static final ConfigOption<Integer> TICKS = ConfigOptions.key("ticks").intType().defaultValue(0);
    private static final ConfigOption<Long> QUIET = ConfigOptions.key("quiet-ms").longType().defaultValue(30L);
    private static final ConfigOption<Long> LOAD_QUIET = ConfigOptions.key("load-quiet-ms").longType().defaultValue(2000L);
    private static final ConfigOption<Boolean> WANTED = ConfigOptions.key("wanted").booleanType().defaultValue(true);

    /** If above 0: so many columns are the key of a row, and a row replaces the one that came before it. */
    private static final ConfigOption<Integer> KEY = ConfigOptions.key("key-columns").intType().defaultValue(0);

    @Override
    public String factoryIdentifier() {
        return "dbspark-peer";
    }

    @Override
    public Set<ConfigOption<?>> requiredOptions() {
        return Set.of(DESK);
    }

    @Override
    public Set<ConfigOption<?>> optionalOptions() {
        return Set.of(FILE, SOURCES, TICKS, QUIET, LOAD_QUIET, WANTED, KEY);
    }

    private static ReadableConfig options(org.apache.flink.table.factories.DynamicTableFactory self, Context context) {
        FactoryUtil.TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(self, context);
        helper.validate();
        return helper.getOptions();
    }

    @Override
    public DynamicTableSource createDynamicTableSource(Context context) {
        return new Source(options(this, context));
    }

    @Override
    public DynamicTableSink createDynamicTableSink(Context context) {
        return new Sink(options(this, context), context.getPhysicalRowDataType().getLogicalType());
    }

    private static final class Source implements ScanTableSource {
        private final ReadableConfig options;

        Source(ReadableConfig options) {
            this.options = options;
        }

        @Override
        public ChangelogMode getChangelogMode() {
            ChangelogMode.Builder mode = ChangelogMode.newBuilder().addContainedKind(RowKind.INSERT);
            return (options.get(TICKS) > 0 ? mode.addContainedKind(RowKind.DELETE) : mode).build();
        }

        @Override
        public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
            Rows rows = new Rows(options.get(FILE), options.get(DESK), options.get(SOURCES), options.get(TICKS),
                    options.get(QUIET), options.get(LOAD_QUIET));
            return SourceFunctionProvider.of(rows, options.get(TICKS) == 0);
        }

        @Override
        public DynamicTableSource copy() {
            return new Source(options);
        }

        @Override
        public String asSummaryString() {
            return "dbspark-peer";
        }
    }

    private static final class Sink implements DynamicTableSink {
        private final ReadableConfig options;
        private final LogicalType row;

        Sink(ReadableConfig options, LogicalType row) {
            this.options = options;
            this.row = row;
        }

        @Override
        public ChangelogMode getChangelogMode(ChangelogMode requested) {
            // Who wants the rows has to be told which ones go; who does not is served best without.
            return options.get(WANTED) ? ChangelogMode.all() : requested;
        }

        @Override
        public SinkRuntimeProvider getSinkRuntimeProvider(Context context) {
            return SinkFunctionProvider.of(new View(
                    options.get(DESK), options.get(TICKS) == 0, options.get(WANTED), options.get(KEY), row.getChildren()));
        }

        @Override
        public DynamicTableSink copy() {
            return new Sink(options, row);
        }

        @Override
        public String asSummaryString() {
            return "dbspark-peer";
        }
    }
}

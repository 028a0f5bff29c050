package skylarkmq.interop.store;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens the store in a folder, does what its standard input says, and stops the store cleanly when
 * that ends. A kill in between leaves what a killed broker leaves.
 *
 * <pre>
 *   argument   one JSON object: root, and keys of MessageStoreConfig by name
 *   input      one JSON object a line, "op" says which; each answers with lines of its own
 *     put      a message                 -> put
 *     batch    messages in one append    -> put
 *     read     all queues                -> queue, then message for each; done
 *     key      topic, key, begin, end    -> key with the places found
 *     time     topic, queue_id, time     -> time with the queue offset
 *     look     physical offset           -> message
 *     flush                              -> flushed
 *     expire   all log files but the last, as soon as the store's cleaner runs, which is
 *              one minute after the start at the earliest
 *                                        -> expired with the log's first offset
 * </pre>
 *
 * A command sees all that was put before it: puts answer at once, reads wait for the dispatch.
 */
public final class Shell {
    private Shell() {
    }

    public static void main(String[] arguments) {
        int code = 1;
        try {
            code = run(JSON.parseObject(arguments[0]));
        } catch (Throwable fault) {
            fault.printStackTrace();
        }
        System.exit(code); // the store's threads would go on
    }

    private static int run(JSONObject options) throws Exception {
        MessageStoreConfig config = config(options);
        boolean unclean = new File(config.getStorePathRootDir(), "abort").exists();
        DefaultMessageStore store = new DefaultMessageStore(
            config,
            new BrokerStatsManager("interop", false),
            null,
            new BrokerConfig());
        boolean loaded = store.load();
        Map<String, Object> fields = Out.event("loaded");
        fields.put("ok", loaded);
        fields.put("unclean", unclean);
        fields.put("min_offset", store.getMinPhyOffset());
        fields.put("max_offset", store.getMaxPhyOffset());
        Out.line(fields);
        if (!loaded) {
            return 3;
        }
        store.start();
        Out.line(Out.event("started"));
        serve(new Puts(store), new Reads(store), store);
        store.shutdown();
        Map<String, Object> stopped = Out.event("stopped");
        stopped.put("clean", !new File(config.getStorePathRootDir(), "abort").exists());
        Out.line(stopped);
        return 0;
    }

    private static MessageStoreConfig config(JSONObject options) {
        MessageStoreConfig config = options.toJavaObject(MessageStoreConfig.class);
        config.setStorePathRootDir(options.getString("root"));
        config.setHaListenPort(0);
        if (options.containsKey("flushDiskType")) {
            config.setFlushDiskType(FlushDiskType.valueOf(options.getString("flushDiskType")));
        }
        return config;
    }

    private static void serve(Puts puts, Reads reads, DefaultMessageStore store) throws Exception {
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = input.readLine()) != null) {
            JSONObject command = JSON.parseObject(line);
            String op = command.getString("op");
            if (op.equals("put")) {
                puts.put(command);
            } else if (op.equals("batch")) {
                puts.batch(command);
            } else {
                reads.awaitDispatch();
                answer(op, command, reads, store);
            }
        }
        reads.awaitDispatch();
    }

    private static void answer(
        String op, JSONObject command, Reads reads, DefaultMessageStore store) throws Exception {
        switch (op) {
            case "read":
                reads.all();
                break;
            case "key":
                reads.key(command);
                break;
            case "time":
                reads.time(command);
                break;
            case "look":
                Out.message(store.lookMessageByOffset(command.getLongValue("offset")), null);
                break;
            case "flush":
                store.flush();
                Out.line(Out.event("flushed"));
                break;
            case "expire":
                reads.expire();
                break;
            default:
                throw new IllegalArgumentException("no such op: " + op);
        }
    }
}

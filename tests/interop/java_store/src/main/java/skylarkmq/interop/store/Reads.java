package skylarkmq.interop.store;

import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** Reads through the store's own interface. */
final class Reads {
    private static final int AT_A_TIME = 32;
    private static final int FOUND_MAX = 64;
    private static final int TAGS_CODE_POSITION = 12;
    private static final long STEP_NS = 1_000_000;
    private static final long CLEANER_MS = 2000;

    private final DefaultMessageStore store;

    Reads(DefaultMessageStore store) {
        this.store = store;
    }

    /** Until queues and index have all of the log; a buffered log is committed by its service. */
    void awaitDispatch() {
        boolean pool = store.getMessageStoreConfig().isTransientStorePoolEnable();
        while (pool && store.getCommitLog().remainHowManyDataToCommit() > 0
            || store.dispatchBehindBytes() > 0) {
            LockSupport.parkNanos(STEP_NS);
        }
    }

    void all() {
        Map<String, ConcurrentMap<Integer, ConsumeQueue>> topics =
            new TreeMap<>(store.getConsumeQueueTable());
        for (Map.Entry<String, ConcurrentMap<Integer, ConsumeQueue>> topic : topics.entrySet()) {
            for (Integer queueId : new TreeMap<>(topic.getValue()).keySet()) {
                queue(topic.getKey(), queueId);
            }
        }
        Out.line(Out.event("done"));
    }

    private void queue(String topic, int queueId) {
        long offset = store.getMinOffsetInQueue(topic, queueId);
        long end = store.getMaxOffsetInQueue(topic, queueId);
        Map<String, Object> fields = Out.event("queue");
        fields.put("topic", topic);
        fields.put("queue_id", queueId);
        fields.put("min_offset", offset);
        fields.put("max_offset", end);
        Out.line(fields);
        while (offset < end) {
            GetMessageResult got =
                store.getMessage("interop", topic, queueId, offset, AT_A_TIME, null);
            for (ByteBuffer buffer : got.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(buffer.slice());
                Out.message(message, tagsCode(topic, queueId, message.getQueueOffset()));
            }
            got.release();
            if (got.getNextBeginOffset() <= offset) {
                throw new IllegalStateException(got.getStatus() + " at " + topic + " " + offset);
            }
            offset = got.getNextBeginOffset();
        }
    }

    /** What a unit, or the extension that it points into, has for a filter. */
    private long tagsCode(String topic, int queueId, long offset) {
        ConsumeQueue queue = store.getConsumeQueueTable().get(topic).get(queueId);
        SelectMappedBufferResult units = queue.getIndexBuffer(offset);
        try {
            long code = units.getByteBuffer().getLong(TAGS_CODE_POSITION);
            return queue.isExtAddr(code) ? queue.getExt(code).getTagsCode() : code;
        } finally {
            units.release();
        }
    }

    void key(JSONObject command) {
        QueryMessageResult found = store.queryMessage(
            command.getString("topic"),
            command.getString("key"),
            FOUND_MAX,
            command.getLongValue("begin"),
            command.getLongValue("end"));
        List<Long> offsets = new ArrayList<>();
        for (ByteBuffer buffer : found.getMessageBufferList()) {
            offsets.add(MessageDecoder.decode(buffer.slice()).getCommitLogOffset());
        }
        found.release();
        Map<String, Object> fields = Out.event("key");
        fields.put("key", command.getString("key"));
        fields.put("offsets", offsets);
        fields.put("last_offset", found.getIndexLastUpdatePhyoffset());
        fields.put("last_timestamp", found.getIndexLastUpdateTimestamp());
        Out.line(fields);
    }

    /** The cleaner takes queue files after those of the log; a moment later both have gone. */
    void expire() throws InterruptedException {
        long before = store.getMinPhyOffset();
        store.executeDeleteFilesManually();
        while (store.getMinPhyOffset() == before) {
            Thread.sleep(CLEANER_MS);
        }
        Thread.sleep(CLEANER_MS);
        Map<String, Object> fields = Out.event("expired");
        fields.put("min_offset", store.getMinPhyOffset());
        Out.line(fields);
    }

    void time(JSONObject command) {
        Map<String, Object> fields = Out.event("time");
        fields.put("offset", store.getOffsetInQueueByTime(
            command.getString("topic"),
            command.getIntValue("queue_id"),
            command.getLongValue("time")));
        Out.line(fields);
    }
}

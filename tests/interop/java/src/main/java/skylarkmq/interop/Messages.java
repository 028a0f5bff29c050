package skylarkmq.interop;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;

/**
 * The messages that the sending programs make.
 *
 * <pre>
 *   topic   where they go
 *   prefix  start of bodies and keys: "prefix-0" and so on, keys "prefix-key-0"
 *   tags    tags given in turn, separated by commas
 *   size    bodies are filled up to so many bytes
 *   delay   delay level
 *   props   properties, NAME:value, separated by ";"; values separated by "|" are given in turn, an
 *           empty one leaves the property out. Names that the broker reads are let pass
 * </pre>
 */
final class Messages {
    private final Args args;

    Messages(Args args) {
        this.args = args;
    }

    Message message(int index) {
        String prefix = args.text("prefix", "m");
        StringBuilder text = new StringBuilder(prefix + "-" + index);
        int size = args.number("size", 0);
        while (text.length() < size) {
            text.append((char) ('a' + text.length() % 26));
        }
        byte[] body = text.toString().getBytes(StandardCharsets.UTF_8);
        String tags = turn(args.text("tags", ""), ",", index);
        Message message = new Message(args.text("topic"), tags, body);
        message.setKeys(prefix + "-key-" + index);
        message.setFlag(index);
        message.putUserProperty("row", String.valueOf(index));
        message.putUserProperty("stadt", "Zürich");
        int delay = args.number("delay", 0);
        if (delay > 0) {
            message.setDelayTimeLevel(delay);
        }
        for (String property : args.text("props", "").split(";")) {
            int colon = property.indexOf(':');
            if (colon < 1) {
                continue;
            }
            String value = turn(property.substring(colon + 1), "\\|", index);
            if (!value.isEmpty()) {
                MessageAccessor.putProperty(message, property.substring(0, colon), value);
            }
        }
        return message;
    }

    private static String turn(String values, String separator, int index) {
        String[] each = values.split(separator, -1);
        return each[index % each.length];
    }
}

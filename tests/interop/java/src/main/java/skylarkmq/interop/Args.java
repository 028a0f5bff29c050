package skylarkmq.interop;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** The program's arguments, each {@code name=value}; namesrv, group and topic are always there. */
final class Args {
    private final Map<String, String> values = new HashMap<>();

    Args(String[] args) {
        for (String arg : args) {
            int equals = arg.indexOf('=');
            if (equals < 1) {
                throw new IllegalArgumentException("not name=value: " + arg);
            }
            values.put(arg.substring(0, equals), arg.substring(equals + 1));
        }
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing: " + name);
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        String value = values.get(name);
        return value == null ? otherwise : Integer.parseInt(value);
    }

    /** What signs with accessKey and secretKey, null without them. */
    RPCHook hook() {
        String key = values.get("accessKey");
        if (key == null) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(key, text("secretKey")));
    }

    boolean flag(String name) {
        return Boolean.parseBoolean(values.get(name));
    }
}

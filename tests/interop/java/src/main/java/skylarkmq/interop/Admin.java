package skylarkmq.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.parser.ParserConfig;
import com.alibaba.fastjson.util.TypeUtils;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * RocketMQ's administration tool, which does what standard input says until that ends: one JVM for
 * many commands. One JSON object a line, answered by one event "answer".
 *
 * <pre>
 *   {"words": [...]}                 a command line of mqadmin -> "text" that it printed, on
 *                                    standard error too
 *   {"method": "...", "args": [..]}  a call of DefaultMQAdminExt -> "value", or "type", "code" and
 *                                    "message" of what it threw
 * </pre>
 *
 * Keys of tables that are no texts come as JSON texts.
 */
public final class Admin {
    private Admin() {
    }

    public static void main(String[] arguments) throws Exception {
        Args args = new Args(arguments);
        DefaultMQAdminExt admin = new DefaultMQAdminExt(args.hook(), args.number("timeout", 15_000));
        admin.setNamesrvAddr(args.text("namesrv"));
        admin.setInstanceName("admin-" + ProcessHandle.current().pid());
        admin.start();
        Out.line("started");
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = input.readLine()) != null) {
            JSONObject command = JSON.parseObject(line);
            Map<String, Object> fields = Out.event("answer");
            if (command.containsKey("words")) {
                fields.put("text", run(command.getJSONArray("words").toArray(new String[0])));
            } else {
                call(admin, command, fields);
            }
            Out.line(fields);
        }
        admin.shutdown();
        System.exit(0);
    }

    private static String run(String[] words) {
        PrintStream before = System.out;
        PrintStream errors = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        try (PrintStream out = new PrintStream(printed, true, StandardCharsets.UTF_8)) {
            System.setOut(out);
            System.setErr(out);
            MQAdminStartup.main0(words, null);
        } finally {
            System.setOut(before);
            System.setErr(errors);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    private static void call(
            DefaultMQAdminExt admin, JSONObject command, Map<String, Object> fields)
            throws Exception {
        JSONArray given = command.getJSONArray("args");
        Method method = method(command.getString("method"), given.size());
        Object[] values = new Object[given.size()];
        Type[] types = method.getGenericParameterTypes();
        for (int index = 0; index < values.length; index++) {
            values[index] = value(given.get(index), types[index]);
        }
        try {
            fields.put("value", method.invoke(admin, values));
        } catch (InvocationTargetException thrown) {
            Out.describe(fields, thrown.getCause());
        }
    }

    private static Object value(Object given, Type type) {
        if (type != Properties.class) {
            return TypeUtils.cast(given, type, ParserConfig.global);
        }
        Properties properties = new Properties();
        properties.putAll((JSONObject) given);
        return properties;
    }

    private static Method method(String name, int count) {
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (method.getName().equals(name) && method.getParameterCount() == count) {
                return method;
            }
        }
        throw new IllegalArgumentException(name + " with " + count + " arguments");
    }
}

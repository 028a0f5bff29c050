"""Classes of the messages in `schema.proto`, made from it by `make schema`."""

from google.protobuf import descriptor_pool, duration_pb2, timestamp_pb2
from google.protobuf.internal import builder

__all__ = ("DESCRIPTOR", "duration_pb2", "timestamp_pb2")  # and the messages and enum values

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(
    b'\n"skylarkmq/protocol/v5/schema.proto\x12\x0cskylarkmq.v5\x1a\x1egoogle/protobuf/durati'
    b'on.proto\x1a\x1fgoogle/protobuf/timestamp.proto"6\n\x06Status\x12\x12\n\x04code\x18\x01'
    b' \x01(\x05R\x04code\x12\x18\n\x07message\x18\x02 \x01(\tR\x07message"M\n\x08Resource'
    b"\x12-\n\x12resource_namespace\x18\x01 \x01(\tR\x11resourceNamespace\x12\x12\n\x04name"
    b'\x18\x02 \x01(\tR\x04name"1\n\x07Address\x12\x12\n\x04host\x18\x01 \x01(\tR\x04host\x12'
    b'\x12\n\x04port\x18\x02 \x01(\x05R\x04port"u\n\tEndpoints\x123\n\x06scheme\x18\x01 \x01('
    b"\x0e2\x1b.skylarkmq.v5.AddressSchemeR\x06scheme\x123\n\taddresses\x18\x02 \x03(\x0b2"
    b'\x15.skylarkmq.v5.AddressR\taddresses"c\n\x06Broker\x12\x12\n\x04name\x18\x01 \x01(\tR'
    b"\x04name\x12\x0e\n\x02id\x18\x02 \x01(\x05R\x02id\x125\n\tendpoints\x18\x03 \x01(\x0b2"
    b'\x17.skylarkmq.v5.EndpointsR\tendpoints"\x81\x02\n\x0cMessageQueue\x12,\n\x05topic\x18'
    b"\x01 \x01(\x0b2\x16.skylarkmq.v5.ResourceR\x05topic\x12\x0e\n\x02id\x18\x02 \x01(\x05R"
    b"\x02id\x128\n\npermission\x18\x03 \x01(\x0e2\x18.skylarkmq.v5.PermissionR\npermission"
    b"\x12,\n\x06broker\x18\x04 \x01(\x0b2\x14.skylarkmq.v5.BrokerR\x06broker\x12K\n\x14accep"
    b't_message_types\x18\x05 \x03(\x0e2\x19.skylarkmq.v5.MessageTypeR\x12acceptMessageTypes"'
    b"M\n\nAssignment\x12?\n\rmessage_queue\x18\x01 \x01(\x0b2\x1a.skylarkmq.v5.MessageQueueR"
    b'\x0cmessageQueue"`\n\x10FilterExpression\x12,\n\x04type\x18\x01 \x01(\x0e2\x18.skylarkm'
    b'q.v5.FilterTypeR\x04type\x12\x1e\n\nexpression\x18\x02 \x01(\tR\nexpression"R\n\x06Dige'
    b"st\x12,\n\x04type\x18\x01 \x01(\x0e2\x18.skylarkmq.v5.DigestTypeR\x04type\x12\x1a\n\x08"
    b'checksum\x18\x02 \x01(\tR\x08checksum"F\n\x0fDeadLetterQueue\x12\x14\n\x05topic\x18\x01'
    b' \x01(\tR\x05topic\x12\x1d\n\nmessage_id\x18\x02 \x01(\tR\tmessageId"\xa8\t\n\x10System'
    b"Properties\x12\x15\n\x03tag\x18\x01 \x01(\tH\x00R\x03tag\x88\x01\x01\x12\x12\n\x04keys"
    b"\x18\x02 \x03(\tR\x04keys\x12\x1d\n\nmessage_id\x18\x03 \x01(\tR\tmessageId\x125\n\x0bb"
    b"ody_digest\x18\x04 \x01(\x0b2\x14.skylarkmq.v5.DigestR\nbodyDigest\x12;\n\rbody_encodin"
    b"g\x18\x05 \x01(\x0e2\x16.skylarkmq.v5.EncodingR\x0cbodyEncoding\x12<\n\x0cmessage_type"
    b"\x18\x06 \x01(\x0e2\x19.skylarkmq.v5.MessageTypeR\x0bmessageType\x12A\n\x0eborn_timesta"
    b"mp\x18\x07 \x01(\x0b2\x1a.google.protobuf.TimestampR\rbornTimestamp\x12\x1b\n\tborn_hos"
    b"t\x18\x08 \x01(\tR\x08bornHost\x12C\n\x0fstore_timestamp\x18\t \x01(\x0b2\x1a.google.pr"
    b"otobuf.TimestampR\x0estoreTimestamp\x12\x1d\n\nstore_host\x18\n \x01(\tR\tstoreHost\x12"
    b"I\n\x12delivery_timestamp\x18\x0b \x01(\x0b2\x1a.google.protobuf.TimestampR\x11delivery"
    b"Timestamp\x12*\n\x0ereceipt_handle\x18\x0c \x01(\tH\x01R\rreceiptHandle\x88\x01\x01\x12"
    b"\x19\n\x08queue_id\x18\r \x01(\x05R\x07queueId\x12&\n\x0cqueue_offset\x18\x0e \x01(\x03"
    b"H\x02R\x0bqueueOffset\x88\x01\x01\x12H\n\x12invisible_duration\x18\x0f \x01(\x0b2\x19.g"
    b"oogle.protobuf.DurationR\x11invisibleDuration\x12.\n\x10delivery_attempt\x18\x10 \x01("
    b"\x05H\x03R\x0fdeliveryAttempt\x88\x01\x01\x12(\n\rmessage_group\x18\x11 \x01(\tH\x04R"
    b"\x0cmessageGroup\x88\x01\x01\x12(\n\rtrace_context\x18\x12 \x01(\tH\x05R\x0ctraceContex"
    b"t\x88\x01\x01\x12n\n&orphaned_transaction_recovery_duration\x18\x13 \x01(\x0b2\x19.goog"
    b"le.protobuf.DurationR#orphanedTransactionRecoveryDuration\x12I\n\x11dead_letter_queue"
    b"\x18\x14 \x01(\x0b2\x1d.skylarkmq.v5.DeadLetterQueueR\x0fdeadLetterQueue\x12\x1f\n\x08p"
    b"riority\x18\x16 \x01(\x05H\x06R\x08priority\x88\x01\x01B\x06\n\x04_tagB\x11\n\x0f_recei"
    b"pt_handleB\x0f\n\r_queue_offsetB\x13\n\x11_delivery_attemptB\x10\n\x0e_message_groupB"
    b'\x10\n\x0e_trace_contextB\x0b\n\t_priority"\xaf\x02\n\x07Message\x12,\n\x05topic\x18'
    b"\x01 \x01(\x0b2\x16.skylarkmq.v5.ResourceR\x05topic\x12R\n\x0fuser_properties\x18\x02 "
    b"\x03(\x0b2).skylarkmq.v5.Message.UserPropertiesEntryR\x0euserProperties\x12K\n\x11syste"
    b"m_properties\x18\x03 \x01(\x0b2\x1e.skylarkmq.v5.SystemPropertiesR\x10systemProperties"
    b"\x12\x12\n\x04body\x18\x04 \x01(\x0cR\x04body\x1aA\n\x13UserPropertiesEntry\x12\x10\n"
    b'\x03key\x18\x01 \x01(\tR\x03key\x12\x14\n\x05value\x18\x02 \x01(\tR\x05value:\x028\x01"'
    b"\x96\x01\n\x12ExponentialBackoff\x123\n\x07initial\x18\x01 \x01(\x0b2\x19.google.protob"
    b"uf.DurationR\x07initial\x12+\n\x03max\x18\x02 \x01(\x0b2\x19.google.protobuf.DurationR"
    b'\x03max\x12\x1e\n\nmultiplier\x18\x03 \x01(\x02R\nmultiplier"B\n\x11CustomizedBackoff'
    b'\x12-\n\x04next\x18\x01 \x03(\x0b2\x19.google.protobuf.DurationR\x04next"\xe3\x01\n\x0b'
    b"RetryPolicy\x12!\n\x0cmax_attempts\x18\x01 \x01(\x05R\x0bmaxAttempts\x12S\n\x13exponent"
    b"ial_backoff\x18\x02 \x01(\x0b2 .skylarkmq.v5.ExponentialBackoffH\x00R\x12exponentialBac"
    b"koff\x12P\n\x12customized_backoff\x18\x03 \x01(\x0b2\x1f.skylarkmq.v5.CustomizedBackoff"
    b'H\x00R\x11customizedBackoffB\n\n\x08strategy"\x91\x01\n\tUserAgent\x122\n\x08language'
    b"\x18\x01 \x01(\x0e2\x16.skylarkmq.v5.LanguageR\x08language\x12\x18\n\x07version\x18\x02"
    b" \x01(\tR\x07version\x12\x1a\n\x08platform\x18\x03 \x01(\tR\x08platform\x12\x1a\n\x08ho"
    b'stname\x18\x04 \x01(\tR\x08hostname"\x94\x01\n\nPublishing\x12.\n\x06topics\x18\x01 '
    b'\x03(\x0b2\x16.skylarkmq.v5.ResourceR\x06topics\x12"\n\rmax_body_size\x18\x02 \x01(\x05'
    b"R\x0bmaxBodySize\x122\n\x15validate_message_type\x18\x03 \x01(\x08R\x13validateMessageT"
    b'ype"\x81\x01\n\x11SubscriptionEntry\x12,\n\x05topic\x18\x01 \x01(\x0b2\x16.skylarkmq.v5'
    b".ResourceR\x05topic\x12>\n\nexpression\x18\x02 \x01(\x0b2\x1e.skylarkmq.v5.FilterExpres"
    b'sionR\nexpression"\xbc\x02\n\x0cSubscription\x12,\n\x05group\x18\x01 \x01(\x0b2\x16.sky'
    b"larkmq.v5.ResourceR\x05group\x12E\n\rsubscriptions\x18\x02 \x03(\x0b2\x1f.skylarkmq.v5."
    b"SubscriptionEntryR\rsubscriptions\x12\x17\n\x04fifo\x18\x03 \x01(\x08H\x00R\x04fifo\x88"
    b"\x01\x01\x121\n\x12receive_batch_size\x18\x04 \x01(\x05H\x01R\x10receiveBatchSize\x88"
    b"\x01\x01\x12K\n\x14long_polling_timeout\x18\x05 \x01(\x0b2\x19.google.protobuf.Duration"
    b'R\x12longPollingTimeoutB\x07\n\x05_fifoB\x15\n\x13_receive_batch_size"O\n\x06Metric\x12'
    b"\x0e\n\x02on\x18\x01 \x01(\x08R\x02on\x125\n\tendpoints\x18\x02 \x01(\x0b2\x17.skylarkm"
    b'q.v5.EndpointsR\tendpoints"\x8b\x04\n\x08Settings\x12>\n\x0bclient_type\x18\x01 \x01('
    b"\x0e2\x18.skylarkmq.v5.ClientTypeH\x01R\nclientType\x88\x01\x01\x12:\n\x0caccess_point"
    b"\x18\x02 \x01(\x0b2\x17.skylarkmq.v5.EndpointsR\x0baccessPoint\x12@\n\x0ebackoff_policy"
    b"\x18\x03 \x01(\x0b2\x19.skylarkmq.v5.RetryPolicyR\rbackoffPolicy\x12B\n\x0frequest_time"
    b"out\x18\x04 \x01(\x0b2\x19.google.protobuf.DurationR\x0erequestTimeout\x12:\n\npublishi"
    b"ng\x18\x05 \x01(\x0b2\x18.skylarkmq.v5.PublishingH\x00R\npublishing\x12@\n\x0csubscript"
    b"ion\x18\x06 \x01(\x0b2\x1a.skylarkmq.v5.SubscriptionH\x00R\x0csubscription\x126\n\nuser"
    b"_agent\x18\x07 \x01(\x0b2\x17.skylarkmq.v5.UserAgentR\tuserAgent\x12,\n\x06metric\x18"
    b"\x08 \x01(\x0b2\x14.skylarkmq.v5.MetricR\x06metricB\t\n\x07pub_subB\x0e\n\x0c_client_ty"
    b'pe"x\n\x11QueryRouteRequest\x12,\n\x05topic\x18\x01 \x01(\x0b2\x16.skylarkmq.v5.Resourc'
    b"eR\x05topic\x125\n\tendpoints\x18\x02 \x01(\x0b2\x17.skylarkmq.v5.EndpointsR\tendpoints"
    b'"\x85\x01\n\x12QueryRouteResponse\x12,\n\x06status\x18\x01 \x01(\x0b2\x14.skylarkmq.v5.'
    b"StatusR\x06status\x12A\n\x0emessage_queues\x18\x02 \x03(\x0b2\x1a.skylarkmq.v5.MessageQ"
    b'ueueR\rmessageQueues"\xab\x01\n\x16QueryAssignmentRequest\x12,\n\x05topic\x18\x01 \x01('
    b"\x0b2\x16.skylarkmq.v5.ResourceR\x05topic\x12,\n\x05group\x18\x02 \x01(\x0b2\x16.skylar"
    b"kmq.v5.ResourceR\x05group\x125\n\tendpoints\x18\x03 \x01(\x0b2\x17.skylarkmq.v5.Endpoin"
    b'tsR\tendpoints"\x83\x01\n\x17QueryAssignmentResponse\x12,\n\x06status\x18\x01 \x01(\x0b'
    b"2\x14.skylarkmq.v5.StatusR\x06status\x12:\n\x0bassignments\x18\x02 \x03(\x0b2\x18.skyla"
    b'rkmq.v5.AssignmentR\x0bassignments"\xec\x05\n\x10TelemetryCommand\x12,\n\x06status\x18'
    b"\x01 \x01(\x0b2\x14.skylarkmq.v5.StatusR\x06status\x124\n\x08settings\x18\x02 \x01(\x0b"
    b"2\x16.skylarkmq.v5.SettingsH\x00R\x08settings\x12N\n\x12thread_stack_trace\x18\x03 \x01"
    b"(\x0b2\x1e.skylarkmq.v5.ThreadStackTraceH\x00R\x10threadStackTrace\x12W\n\x15verify_mes"
    b"sage_result\x18\x04 \x01(\x0b2!.skylarkmq.v5.VerifyMessageResultH\x00R\x13verifyMessage"
    b"Result\x12\x82\x01\n$recover_orphaned_transaction_command\x18\x05 \x01(\x0b2/.skylarkmq"
    b".v5.RecoverOrphanedTransactionCommandH\x00R!recoverOrphanedTransactionCommand\x12t\n pr"
    b"int_thread_stack_trace_command\x18\x06 \x01(\x0b2*.skylarkmq.v5.PrintThreadStackTraceCo"
    b"mmandH\x00R\x1cprintThreadStackTraceCommand\x12Z\n\x16verify_message_command\x18\x07 "
    b'\x01(\x0b2".skylarkmq.v5.VerifyMessageCommandH\x00R\x14verifyMessageCommand\x12i\n\x1br'
    b"econnect_endpoints_command\x18\x08 \x01(\x0b2'.skylarkmq.v5.ReconnectEndpointsCommandH"
    b'\x00R\x19reconnectEndpointsCommandB\t\n\x07command"4\n\x1cPrintThreadStackTraceCommand'
    b'\x12\x14\n\x05nonce\x18\x01 \x01(\tR\x05nonce"r\n\x10ThreadStackTrace\x12\x14\n\x05nonc'
    b"e\x18\x01 \x01(\tR\x05nonce\x121\n\x12thread_stack_trace\x18\x02 \x01(\tH\x00R\x10threa"
    b'dStackTrace\x88\x01\x01B\x15\n\x13_thread_stack_trace"]\n\x14VerifyMessageCommand\x12'
    b"\x14\n\x05nonce\x18\x01 \x01(\tR\x05nonce\x12/\n\x07message\x18\x02 \x01(\x0b2\x15.skyl"
    b'arkmq.v5.MessageR\x07message"+\n\x13VerifyMessageResult\x12\x14\n\x05nonce\x18\x01 \x01'
    b'(\tR\x05nonce"1\n\x19ReconnectEndpointsCommand\x12\x14\n\x05nonce\x18\x01 \x01(\tR\x05n'
    b'once"{\n!RecoverOrphanedTransactionCommand\x12/\n\x07message\x18\x01 \x01(\x0b2\x15.sky'
    b'larkmq.v5.MessageR\x07message\x12%\n\x0etransaction_id\x18\x02 \x01(\tR\rtransactionId"'
    b"{\n\x10HeartbeatRequest\x12,\n\x05group\x18\x01 \x01(\x0b2\x16.skylarkmq.v5.ResourceR"
    b"\x05group\x129\n\x0bclient_type\x18\x02 \x01(\x0e2\x18.skylarkmq.v5.ClientTypeR\nclient"
    b'Type"A\n\x11HeartbeatResponse\x12,\n\x06status\x18\x01 \x01(\x0b2\x14.skylarkmq.v5.Stat'
    b'usR\x06status"G\n\x12SendMessageRequest\x121\n\x08messages\x18\x01 \x03(\x0b2\x15.skyla'
    b'rkmq.v5.MessageR\x08messages"\xc2\x01\n\x0fSendResultEntry\x12,\n\x06status\x18\x01 '
    b"\x01(\x0b2\x14.skylarkmq.v5.StatusR\x06status\x12\x1d\n\nmessage_id\x18\x02 \x01(\tR\tm"
    b"essageId\x12%\n\x0etransaction_id\x18\x03 \x01(\tR\rtransactionId\x12\x16\n\x06offset"
    b'\x18\x04 \x01(\x03R\x06offset\x12#\n\rrecall_handle\x18\x05 \x01(\tR\x0crecallHandle"|'
    b"\n\x13SendMessageResponse\x12,\n\x06status\x18\x01 \x01(\x0b2\x14.skylarkmq.v5.StatusR"
    b"\x06status\x127\n\x07entries\x18\x02 \x03(\x0b2\x1d.skylarkmq.v5.SendResultEntryR\x07en"
    b'tries"\xae\x02\n\x15EndTransactionRequest\x12,\n\x05topic\x18\x01 \x01(\x0b2\x16.skylar'
    b"kmq.v5.ResourceR\x05topic\x12\x1d\n\nmessage_id\x18\x02 \x01(\tR\tmessageId\x12%\n\x0et"
    b"ransaction_id\x18\x03 \x01(\tR\rtransactionId\x12C\n\nresolution\x18\x04 \x01(\x0e2#.sk"
    b"ylarkmq.v5.TransactionResolutionR\nresolution\x127\n\x06source\x18\x05 \x01(\x0e2\x1f.s"
    b"kylarkmq.v5.TransactionSourceR\x06source\x12#\n\rtrace_context\x18\x06 \x01(\tR\x0ctrac"
    b'eContext"F\n\x16EndTransactionResponse\x12,\n\x06status\x18\x01 \x01(\x0b2\x14.skylarkm'
    b'q.v5.StatusR\x06status"i\n\x14RecallMessageRequest\x12,\n\x05topic\x18\x01 \x01(\x0b2'
    b"\x16.skylarkmq.v5.ResourceR\x05topic\x12#\n\rrecall_handle\x18\x02 \x01(\tR\x0crecallHa"
    b'ndle"d\n\x15RecallMessageResponse\x12,\n\x06status\x18\x01 \x01(\x0b2\x14.skylarkmq.v5.'
    b'StatusR\x06status\x12\x1d\n\nmessage_id\x18\x02 \x01(\tR\tmessageId"\xdb\x03\n\x15Recei'
    b"veMessageRequest\x12,\n\x05group\x18\x01 \x01(\x0b2\x16.skylarkmq.v5.ResourceR\x05group"
    b"\x12?\n\rmessage_queue\x18\x02 \x01(\x0b2\x1a.skylarkmq.v5.MessageQueueR\x0cmessageQueu"
    b"e\x12K\n\x11filter_expression\x18\x03 \x01(\x0b2\x1e.skylarkmq.v5.FilterExpressionR\x10"
    b"filterExpression\x12\x1d\n\nbatch_size\x18\x04 \x01(\x05R\tbatchSize\x12H\n\x12invisibl"
    b"e_duration\x18\x05 \x01(\x0b2\x19.google.protobuf.DurationR\x11invisibleDuration\x12"
    b"\x1d\n\nauto_renew\x18\x06 \x01(\x08R\tautoRenew\x12K\n\x14long_polling_timeout\x18\x07"
    b' \x01(\x0b2\x19.google.protobuf.DurationR\x12longPollingTimeout\x12"\n\nattempt_id\x18'
    b'\x08 \x01(\tH\x00R\tattemptId\x88\x01\x01B\r\n\x0b_attempt_id"\xd3\x01\n\x16ReceiveMess'
    b"ageResponse\x12.\n\x06status\x18\x01 \x01(\x0b2\x14.skylarkmq.v5.StatusH\x00R\x06status"
    b"\x121\n\x07message\x18\x02 \x01(\x0b2\x15.skylarkmq.v5.MessageH\x00R\x07message\x12K\n"
    b"\x12delivery_timestamp\x18\x03 \x01(\x0b2\x1a.google.protobuf.TimestampH\x00R\x11delive"
    b'ryTimestampB\t\n\x07content"W\n\x0fAckMessageEntry\x12\x1d\n\nmessage_id\x18\x01 \x01('
    b'\tR\tmessageId\x12%\n\x0ereceipt_handle\x18\x02 \x01(\tR\rreceiptHandle"\xa8\x01\n\x11A'
    b"ckMessageRequest\x12,\n\x05group\x18\x01 \x01(\x0b2\x16.skylarkmq.v5.ResourceR\x05group"
    b"\x12,\n\x05topic\x18\x02 \x01(\x0b2\x16.skylarkmq.v5.ResourceR\x05topic\x127\n\x07entri"
    b'es\x18\x03 \x03(\x0b2\x1d.skylarkmq.v5.AckMessageEntryR\x07entries"\x8b\x01\n\x15AckMes'
    b"sageResultEntry\x12\x1d\n\nmessage_id\x18\x01 \x01(\tR\tmessageId\x12%\n\x0ereceipt_han"
    b"dle\x18\x02 \x01(\tR\rreceiptHandle\x12,\n\x06status\x18\x03 \x01(\x0b2\x14.skylarkmq.v"
    b'5.StatusR\x06status"\x81\x01\n\x12AckMessageResponse\x12,\n\x06status\x18\x01 \x01(\x0b'
    b"2\x14.skylarkmq.v5.StatusR\x06status\x12=\n\x07entries\x18\x02 \x03(\x0b2#.skylarkmq.v5"
    b'.AckMessageResultEntryR\x07entries"\x8c\x02\n\x1eChangeInvisibleDurationRequest\x12,\n'
    b"\x05group\x18\x01 \x01(\x0b2\x16.skylarkmq.v5.ResourceR\x05group\x12,\n\x05topic\x18"
    b"\x02 \x01(\x0b2\x16.skylarkmq.v5.ResourceR\x05topic\x12%\n\x0ereceipt_handle\x18\x03 "
    b"\x01(\tR\rreceiptHandle\x12H\n\x12invisible_duration\x18\x04 \x01(\x0b2\x19.google.prot"
    b'obuf.DurationR\x11invisibleDuration\x12\x1d\n\nmessage_id\x18\x05 \x01(\tR\tmessageId"v'
    b"\n\x1fChangeInvisibleDurationResponse\x12,\n\x06status\x18\x01 \x01(\x0b2\x14.skylarkmq"
    b'.v5.StatusR\x06status\x12%\n\x0ereceipt_handle\x18\x02 \x01(\tR\rreceiptHandle"\xa9\x02'
    b"\n&ForwardMessageToDeadLetterQueueRequest\x12,\n\x05group\x18\x01 \x01(\x0b2\x16.skylar"
    b"kmq.v5.ResourceR\x05group\x12,\n\x05topic\x18\x02 \x01(\x0b2\x16.skylarkmq.v5.ResourceR"
    b"\x05topic\x12%\n\x0ereceipt_handle\x18\x03 \x01(\tR\rreceiptHandle\x12\x1d\n\nmessage_i"
    b"d\x18\x04 \x01(\tR\tmessageId\x12)\n\x10delivery_attempt\x18\x05 \x01(\x05R\x0fdelivery"
    b"Attempt\x122\n\x15max_delivery_attempts\x18\x06 \x01(\x05R\x13maxDeliveryAttempts\"W\n'"
    b"ForwardMessageToDeadLetterQueueResponse\x12,\n\x06status\x18\x01 \x01(\x0b2\x14.skylark"
    b'mq.v5.StatusR\x06status"N\n\x1eNotifyClientTerminationRequest\x12,\n\x05group\x18\x01 '
    b'\x01(\x0b2\x16.skylarkmq.v5.ResourceR\x05group"O\n\x1fNotifyClientTerminationResponse'
    b"\x12,\n\x06status\x18\x01 \x01(\x0b2\x14.skylarkmq.v5.StatusR\x06status*\xa4\x01\n\nCli"
    b"entType\x12\x1b\n\x17CLIENT_TYPE_UNSPECIFIED\x10\x00\x12\x0c\n\x08PRODUCER\x10\x01\x12"
    b"\x11\n\rPUSH_CONSUMER\x10\x02\x12\x13\n\x0fSIMPLE_CONSUMER\x10\x03\x12\x11\n\rPULL_CONS"
    b"UMER\x10\x04\x12\x16\n\x12LITE_PUSH_CONSUMER\x10\x05\x12\x18\n\x14LITE_SIMPLE_CONSUMER"
    b"\x10\x06*\xad\x01\n\x08Language\x12\x18\n\x14LANGUAGE_UNSPECIFIED\x10\x00\x12\x08\n\x04"
    b"JAVA\x10\x01\x12\x07\n\x03CPP\x10\x02\x12\x0b\n\x07DOT_NET\x10\x03\x12\n\n\x06GOLANG"
    b"\x10\x04\x12\x08\n\x04RUST\x10\x05\x12\n\n\x06PYTHON\x10\x06\x12\x07\n\x03PHP\x10\x07"
    b"\x12\x0b\n\x07NODE_JS\x10\x08\x12\x08\n\x04RUBY\x10\t\x12\x0f\n\x0bOBJECTIVE_C\x10\n"
    b"\x12\x08\n\x04DART\x10\x0b\x12\n\n\x06KOTLIN\x10\x0c*u\n\x0bMessageType\x12\x1c\n\x18ME"
    b"SSAGE_TYPE_UNSPECIFIED\x10\x00\x12\n\n\x06NORMAL\x10\x01\x12\x08\n\x04FIFO\x10\x02\x12"
    b"\t\n\x05DELAY\x10\x03\x12\x0f\n\x0bTRANSACTION\x10\x04\x12\x08\n\x04LITE\x10\x05\x12"
    b"\x0c\n\x08PRIORITY\x10\x06*<\n\x08Encoding\x12\x18\n\x14ENCODING_UNSPECIFIED\x10\x00"
    b"\x12\x0c\n\x08IDENTITY\x10\x01\x12\x08\n\x04GZIP\x10\x02*G\n\nDigestType\x12\x1b\n\x17D"
    b"IGEST_TYPE_UNSPECIFIED\x10\x00\x12\t\n\x05CRC32\x10\x01\x12\x07\n\x03MD5\x10\x02\x12"
    b"\x08\n\x04SHA1\x10\x03*;\n\nFilterType\x12\x1b\n\x17FILTER_TYPE_UNSPECIFIED\x10\x00\x12"
    b"\x07\n\x03TAG\x10\x01\x12\x07\n\x03SQL\x10\x02*W\n\nPermission\x12\x1a\n\x16PERMISSION_"
    b"UNSPECIFIED\x10\x00\x12\x08\n\x04NONE\x10\x01\x12\x08\n\x04READ\x10\x02\x12\t\n\x05WRIT"
    b"E\x10\x03\x12\x0e\n\nREAD_WRITE\x10\x04*T\n\rAddressScheme\x12\x1e\n\x1aADDRESS_SCHEME_"
    b"UNSPECIFIED\x10\x00\x12\x08\n\x04IPv4\x10\x01\x12\x08\n\x04IPv6\x10\x02\x12\x0f\n\x0bDO"
    b'MAIN_NAME\x10\x03*Y\n\x15TransactionResolution\x12&\n"TRANSACTION_RESOLUTION_UNSPECIFIE'
    b"D\x10\x00\x12\n\n\x06COMMIT\x10\x01\x12\x0c\n\x08ROLLBACK\x10\x02*W\n\x11TransactionSou"
    b"rce\x12\x16\n\x12SOURCE_UNSPECIFIED\x10\x00\x12\x11\n\rSOURCE_CLIENT\x10\x01\x12\x17\n"
    b"\x13SOURCE_SERVER_CHECK\x10\x02b\x06proto3"
)
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, __name__, globals())

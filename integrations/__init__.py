"""SkylarkMQ below the messaging libraries that Python teams know.

    faststream/   a FastStream broker          extra `faststream`
    kombu/        a Kombu transport, Celery's  extra `kombu`

Applications import them. They stand on the SDK alone, so they work with Apache RocketMQ, too.
Nothing of ours imports them, and importing this package loads neither library.
"""

"""SkylarkMQ below the messaging libraries that Python teams know.

    faststream/   a FastStream broker  extra `faststream`

Applications import them. They stand on the SDK alone, so they work with Apache RocketMQ, too.
Nothing of ours imports them, and importing this package does not load it.
"""

"""Small models of every family of timm's that has a DropPath, with what makes them small."""

ARCHITECTURES: dict[str, tuple[str, int]] = {
    # module of timm: architecture and arguments, image size
    "beit": ("beit_base_patch16_224 embed_dim=24 depth=2 num_heads=2", 32),
    "byobnet": ("test_byobnet", 32),
    "cait": ("cait_xxs24_224 embed_dim=24 depth=2 num_heads=2", 32),
    "coat": ("coat_lite_tiny", 32),
    "convit": ("convit_tiny embed_dim=48 depth=3 local_up_to_layer=2", 32),
    "convnext": ("convnext_atto depths=(1,1,1,1) dims=(8,16,24,32)", 32),
    "cpubone": ("cpubone_nano width_list=[8,8,16,16,32] depth_list=[0,1,1,1,1]", 64),
    "crossvit": ("crossvit_9_240 embed_dim=[16,32] depth=[[1,1,0]]", 240),
    "csatv2": ("csatv2", 64),
    "cspnet": ("cs3darknet_s", 64),
    "cspnext": ("cspnext_tiny", 64),
    "davit": ("davit_tiny depths=(1,1,1,1) embed_dims=(16,16,32,32) num_heads=(1,1,2,2)", 32),
    "deepseek_vit": ("deepseek_vit_412m embed_dim=32 depth=2 num_heads=2", 28),
    "edgenext": ("edgenext_xx_small depths=(1,1,1,1) dims=(16,24,32,40)", 64),
    "efficientformer": (
        "efficientformer_l1 depths=(1,1,1,2) embed_dims=(8,16,24,32) num_vit=1",
        224,
    ),
    "efficientformer_v2": (
        "efficientformerv2_s0 depths=(1,1,1,2) embed_dims=(8,16,24,32) num_vit=1 "
        "mlp_ratios=((4,),(4,),(4,),(4,4))",
        64,
    ),
    "efficientnet": ("mobilenetv3_small_050", 32),
    "efficientvim": ("efficientvim_m1 embed_dim=(16,32,64) depths=(1,1,1)", 128),
    "eva": ("eva02_tiny_patch14_224 embed_dim=24 depth=2 num_heads=2", 28),
    "fasternet": ("fasternet_t0 depths=(1,1,1,1)", 32),
    "fastvit": ("fastvit_t8 layers=(1,1,1,1) embed_dims=(16,32,64,128)", 64),
    "focalnet": ("focalnet_tiny_srf", 32),
    "gcvit": ("gcvit_xxtiny", 224),
    "gemma4_vit": (
        "gemma4_vit_167m depth=1 embed_dim=32 num_heads=2 head_dim=16 intermediate_size=64",
        48,
    ),
    "hgnet": ("hgnetv2_b0", 128),
    "hiera": ("hiera_tiny_224 stages=(1,1,1,1) embed_dim=16", 224),
    "hieradet_sam2": ("hieradet_small stages=(1,1,2,1) global_att_blocks=(3,)", 64),
    "iformer": ("iformer_t depths=(1,1,4,4) dims=(16,16,32,64) attn_groups=(0,0,1,1)", 64),
    "inception_next": ("inception_next_atto depths=(1,1,1,1)", 64),
    "levit": ("levit_128s", 64),
    "lowformer": ("lowformer_b0 width_list=[8,8,16,32,64] depth_list=[0,1,1,1,1]", 64),
    "mambaout": ("test_mambaout", 64),
    "maxxvit": ("test_maxvit", 64),
    "metaformer": ("poolformer_s12", 32),
    "mlp_mixer": ("gmixer_12_224", 32),
    "mobilevit": ("mobilevit_xxs", 64),
    "mvitv2": ("mvitv2_tiny", 64),
    "nest": ("nest_tiny", 64),
    "nextvit": ("nextvit_small depths=(1,1,5,1)", 64),
    "nfnet": ("test_nfnet", 64),
    "pit": ("pit_ti_224 depth=(1,1,1) base_dims=(16,16,16) heads=(1,2,2)", 32),
    "pvt_v2": ("pvt_v2_b0 depths=(1,1,1,1) embed_dims=(8,16,24,32) num_heads=(1,2,2,4)", 32),
    "rdnet": (
        "rdnet_tiny num_init_features=16 growth_rates=[8,8,8,8,8,8,8] "
        "num_blocks_list=[1,1,1,1,1,1,1]",
        64,
    ),
    "regnet": ("regnety_002", 32),
    "resnet": ("test_resnet", 32),
    "resnetv2": ("resnetv2_18 layers=(1,1,1,1) channels=(16,16,32,32)", 32),
    "rexnet": ("rexnet_100", 64),
    "sequencer": (
        "sequencer2d_s layers=[1,1,1,1] embed_dims=[16,16,16,16] hidden_sizes=[8,8,8,8]",
        64,
    ),
    "starnet": ("starnet_s050", 32),
    "swiftformer": ("swiftformer_xs layers=[1,1,1,1] embed_dims=[16,16,32,32]", 64),
    "swin_transformer": (
        "swin_tiny_patch4_window7_224 depths=(1,2) window_size=4 embed_dim=24 num_heads=(1,2)",
        32,
    ),
    "swin_transformer_v2": (
        "swinv2_tiny_window8_256 depths=(1,2) window_size=4 embed_dim=24 num_heads=(1,2)",
        32,
    ),
    "swin_transformer_v2_cr": (
        "swinv2_cr_tiny_224 depths=(1,2) window_size=4 embed_dim=24 num_heads=(1,2)",
        32,
    ),
    "tiny_vit": (
        "tiny_vit_5m_224 depths=(1,1,1,1) embed_dims=(16,16,32,32) num_heads=(1,1,2,2) "
        "window_sizes=(7,7,7,7)",
        224,
    ),
    "tnt": ("tnt_s_legacy_patch16_224 depth=2 embed_dim=24 inner_dim=8", 32),
    "tresnet": ("tresnet_m layers=[1,1,1,1] width_factor=0.25", 64),
    "twins": ("twins_svt_small depths=(1,1,1,1) embed_dims=(16,16,32,32) num_heads=(1,1,2,2)", 224),
    "visformer": ("visformer_tiny depth=(1,1,1) embed_dim=48", 64),
    "vision_transformer": ("vit_tiny_patch16_224 embed_dim=24 depth=2 num_heads=2", 32),
    "vision_transformer_relpos": (
        "vit_relpos_small_patch16_224 embed_dim=24 depth=2 num_heads=2",
        32,
    ),
    "vision_transformer_sam": ("samvit_base_patch16_224 embed_dim=24 depth=2 num_heads=2", 32),
    "vitamin": ("vitamin_small_224", 64),
    "volo": ("volo_d1_224", 64),
    "vovnet": ("ese_vovnet19b_slim", 32),
    "xception_aligned": ("xception41", 64),
    "xcit": ("xcit_nano_12_p16_224 depth=2 embed_dim=32 num_heads=2", 32),
}

QUICK = ("tnt", "swin_transformer", "resnet")
"""Those of the ordinary tests: two of table 6.13's, and one with BatchNorm."""

REFUSED = {"coat": "are used under several names"}
"""Those that cannot be trained exactly, and what is said of them."""
